"""The engine: pools of workers that step envs and answer in batches.

Read along the data path: `spec` (what a row holds), `arena` (where it lies), `hub` (the
parent's end: actions out, batches in), `slot` (the worker's end: commands in, rows out),
`host` (steps and resets the envs of one slot), `worker` (the process around hosts),
`supervise` (starts workers, hears their deaths), and `pool`, `serial`, `process` (the waist
that everything above stands on).
"""
