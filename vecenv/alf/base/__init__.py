"""Time steps, specs and the interface of an environment; everything else of `vecenv.alf` stands on them."""
