"""`vecenv.lease`: envs of an env server, in place of constructors."""

from __future__ import annotations

from ..core.processes.env_stock import LeasedEnv
from ..errors import ConfigError
from ..values.checks import check_seconds, check_whole
from .requests import socket_path

__all__ = ["lease"]


def lease(
    name: str,
    num_envs: int,
    *,
    client: str = "default",
    timeout: float | None = None,
    max_seconds: float | None = None,
    socket: str | None = None,
) -> list[LeasedEnv]:
    """Return env factories for envs that an env server has built; see `vecenv serve`.

    They can be given wherever env factories can, if the envs are in worker processes. The pool asks the server for
    workers when it starts, waits until they are granted, and drives them as its own, at the same speed. They return to
    the server when the pool is closed, when this process ends, or after `max_seconds`. Each env then behaves as a new
    one, unless the server has `rebuild = "never"` for it.

    Args:
        name: of the env at the server.
        num_envs: number of envs.
        client: whose quota counts, such as 'eval'.
        timeout: how long a pool waits for workers, in seconds; None: without a limit. A pool that has waited for
            longer raises WorkerTimeoutError.
        max_seconds: after this time the server takes the envs back; None: the limit of the server.
        socket: path of the server's socket; None: that of `vecenv serve` without --socket.

    Returns:
        `num_envs` times the same factory, which can be pickled.

    Raises:
        ConfigError: an argument is wrong. An unknown name is an error of the pool, as is a server that does not run.

    Example:
        envs = vecenv.VectorEnv(vecenv.lease("carla", 4, client="eval"))
    """
    for key, value in (("name", name), ("client", client)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"lease: {key}: expected a text, got {value!r}", key=key)
    check_whole("lease: num_envs", num_envs, 1)
    for key, seconds in (("timeout", timeout), ("max_seconds", max_seconds)):
        if seconds is not None:
            check_seconds(f"lease: {key}", seconds)
    return [LeasedEnv(name, client, timeout, max_seconds, socket or socket_path())] * num_envs
