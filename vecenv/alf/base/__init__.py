"""Time steps, specs and the interface of an environment: the types that all other modules of `vecenv.alf` use."""
