"""Modules that the fork server imports first, so that every worker finds them loaded.

The variables that limit threads must be set before NumPy is loaded. So this module sets them when it is imported, and
`import vecenv` itself loads nothing.
"""

from __future__ import annotations

import signal
from multiprocessing import util

from ..system.blas_threads import cap_environment

cap_environment(1, {})
if hasattr(signal, "pthread_sigmask"):  # the server starts with the first worker, while its parent blocks signals
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

import cloudpickle  # noqa: E402, F401
import gymnasium  # noqa: E402, F401
import numpy  # noqa: E402, F401

from ..host import shortcut  # noqa: E402
from ..system.module_files import note_modules  # noqa: E402
from . import worker_main  # noqa: E402, F401

shortcut.known_steps()  # it reads sources, which takes 4 ms: once here instead of in every worker
note_modules()
getattr(util, "_close_stdin")()  # noqa: B009  # the input of the program is not for its workers
