"""Env servers: keep the workers of slow envs warm, and lend them to the programs of one user.

    catalog     the envs of a server and the limits of its clients: a TOML file, or one env of the command line
    quotas      the order in which requests for workers are granted
    server      the loop of `vecenv serve`: starts workers, answers clients, takes workers back
    leases      `vecenv.lease`, and the requests of `vecenv leases` and `vecenv serve --stop`

The server has no part in steps: a pool that has leased workers exchanges commands and rows with them through its own
shared memory; see `core.processes.standby`.
"""

__all__: list[str] = []
