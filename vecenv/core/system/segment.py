"""Segments: the memory that rows and actions lie in, from creation to the last view.

A segment has a name only for the moment in which it is opened; then its pages are reserved,
and workers get the descriptor over their control socket. So nothing is left in /dev/shm, and a
shortage shows here and not later as SIGBUS. The mapping belongs to the `mmap` object, which every
numpy view keeps alive; nobody unmaps it by hand.

Not a memfd: that counts against no mount, so a container's limit on /dev/shm would not be seen, nor kept.
"""

from __future__ import annotations

import errno
import mmap
import os
from multiprocessing import resource_tracker, shared_memory

from ...errors import ConfigError

__all__ = ["Segment", "private_segment"]

_SHM_FOLDER = "/dev/shm"
_MIB = 2**20
#: What the making of a name meets where /dev/shm is missing, read-only or another's, or has no names left.
_NO_NAMES = (errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC)


class Segment:
    """A mapping shared with the processes that are handed `fd`.

    Attributes:
        memory: the writable mapping, `nbytes` long and page aligned.
        fd: descriptor to map it again; closed by `close_fd` once no worker needs it.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.memory = mmap.mmap(fd, nbytes)

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """Create a nameless segment with all its pages reserved.

        Raises:
            ConfigError: /dev/shm has not that much room, is missing, or cannot be written; or no file may be so large.
        """
        # The tracker, which removes what a killed process leaves, else starts only when there is a name already.
        resource_tracker.ensure_running()
        # Named after its process, for whoever finds it after a kill at this very moment.
        name = f"vecenv-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            named = shared_memory.SharedMemory(name, create=True, size=nbytes)
        except OSError as error:
            if error.errno in _NO_NAMES:
                raise ConfigError(
                    f"{_SHM_FOLDER}: no shared memory can be made there: {error.strerror}; workers need it. Mount a "
                    "tmpfs there that this user can write to, or have the envs in the process itself "
                    "(backend='serial', or a manager of type 'base')"
                ) from error
            if error.errno == errno.EFBIG:
                raise ConfigError(
                    f"the batches of this pool need {nbytes / _MIB:.0f} MiB of shared memory, more than a file may "
                    "have here; raise `ulimit -f`"
                ) from error
            raise
        try:
            fd = os.open(f"{_SHM_FOLDER}/{named.name.lstrip('/')}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            named.unlink()  # before the pages are reserved, which takes a while
            named.close()
        try:
            os.posix_fallocate(fd, 0, nbytes)  # in one go: pieces would take all memory before one is refused
            return cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise ConfigError(_shortage(nbytes)) from error
            raise

    def close_fd(self) -> None:
        """Close the descriptor; the mapping stays until its last view is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def private_segment(nbytes: int) -> mmap.mmap:
    """Return zeroed memory laid out like a segment but seen by this process only."""
    return mmap.mmap(-1, nbytes)


def _shortage(nbytes: int) -> str:
    stats = os.statvfs(_SHM_FOLDER)
    free = stats.f_bavail * stats.f_frsize / _MIB
    return (
        f"{_SHM_FOLDER}: the batches of this pool need {nbytes / _MIB:.0f} MiB of shared memory, "
        f"{free:.0f} MiB are free. Use fewer envs, a smaller depth or smaller observations, or enlarge "
        "it (in a container: --shm-size)"
    )
