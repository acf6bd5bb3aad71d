"""Requests of commands to an env server, and where its socket is."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import Any

from ..core.system.clock import Deadline
from ..core.system.message_socket import BadMessage, MessageSocket
from ..core.system.monitor_files import private_folder
from ..errors import ConfigError, WorkerTimeoutError

__all__ = ["ask_server", "socket_path"]

#: Name of the socket in the folder of this user.
_SOCKET_NAME = "serve.sock"
#: How long a server may take for an answer, in seconds.
_ANSWER_SECONDS = 10.0


def socket_path() -> str:
    """Return the path of the server's socket without `--socket`; its folder is made, with access for this user only.

    Raises:
        ConfigError: there is no such folder.
    """
    try:
        return os.path.join(private_folder(), _SOCKET_NAME)
    except OSError as error:
        raise ConfigError(f"no folder for the socket of env servers: {error}") from error


def ask_server(path: str, request: dict[str, Any]) -> dict[str, list[Any]]:
    """Send a request to the server at a path; return its answer: {}, or lists by their names.

    Raises:
        ConfigError: no server answers there, or it refuses.
        WorkerTimeoutError: there was no answer within 10 s.
    """
    try:
        connection = MessageSocket.connect(path)
    except OSError as error:
        raise ConfigError(f"no env server answers at {path}: {error.strerror}") from error
    answer: dict[str, list[Any]] = {}
    with closing(connection):
        with suppress(OSError):  # it has refused, or ended: its answer shows that
            connection.send(request)
        while "done" not in (part := _receive(connection, path)):
            for key, values in part.items():
                answer.setdefault(key, []).extend(values)
    return answer


def _receive(connection: MessageSocket, path: str) -> dict[str, Any]:
    if not connection.await_message(Deadline(_ANSWER_SECONDS)):
        seconds = _ANSWER_SECONDS
        raise WorkerTimeoutError(f"the env server at {path} has not answered within {seconds:g} s", timeout=seconds)
    try:
        part, _ = connection.receive()
    except (EOFError, OSError, BadMessage) as error:
        raise ConfigError(f"the env server at {path} has ended") from error
    if "refused" in part:
        raise ConfigError(f"the env server refuses: {part['refused']}")
    return part
