"""Shards on the nodes of a Ray cluster: `backend="ray"`.

    placement    the living nodes, the number of shards, and the bundle of a placement group for each
    carrier      `make_ray_engine`; `RayCarrier`: requests to actors and their replies; Ray's errors as events
    actor        runs on a node: the actor that hosts a shard, and the task that kills a stopped one

Ray is imported when a pool is made, and not before. vecenv never starts a cluster: the program calls `ray.init()`.
"""
