"""Preload: imported first in the fork server, so that every worker finds its modules loaded.

The thread variables must be set before NumPy is loaded, which is why this module sets them
at import and `import vecenv` itself loads nothing.
"""

from __future__ import annotations

import signal

from .threads import cap_environment

cap_environment(1)
if hasattr(signal, "pthread_sigmask"):  # the server starts with the first worker, while its parent takes no signals
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

import cloudpickle  # noqa: E402, F401
import gymnasium  # noqa: E402, F401
import numpy  # noqa: E402, F401

from . import shortcut, worker  # noqa: E402, F401

shortcut.known_steps()  # reads sources: 4 ms, once and not in every worker
