"""The engine: pools of workers that step envs and answer in batches.

Read along the data path: `spec` (what a row holds), `arena` (where it lies), `hub` (the
parent's end: actions out, runs of rows in), `host` (steps and resets the envs of one slot; the
slot itself is native/slot.h), `worker` (the process around hosts), `supervise` (starts
workers, hears their deaths), `batch` (what the caller gets), and `life`, `waist`, `sending`,
`receiving`, `pool`, `serial`, `process`: the waist that everything above stands on. When a
worker dies or hangs, `deaths` hears of it, `recovery` decides, `journal` (kept in `pages`)
knows what its envs had done since the state that `keeping` saw last, and `replay` does that
again inside its successor. `streams` gives each env global random generators of its own,
wherever it is called. Where there are no C parts the `twin_*` files stand in (`twin_words`).
"""
