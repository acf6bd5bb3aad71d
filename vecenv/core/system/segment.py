"""Create the shared memory segment of rows and actions, and keep it until the last view is gone.

A segment has a name only while it is being opened. Then its pages are reserved, and workers receive the descriptor
over their control socket. So no file is left in /dev/shm, and a shortage of memory raises an error here instead of
SIGBUS later. The mapping belongs to the `mmap` object, which every NumPy view keeps alive; there is no explicit unmap.

A memfd is not used: it counts against no mount, so it would bypass a container's limit on /dev/shm.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import weakref
from multiprocessing import resource_tracker, shared_memory
from typing import Any

from ...errors import ConfigError, ShortageError
from .descriptor import Descriptor

__all__ = ["Segment", "private_segment"]

_SHM_FOLDER = "/dev/shm"
_MIB = 2**20
#: Errors of creating a name: /dev/shm is missing, read-only or not accessible, or has no free names.
_NO_NAMES = (errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC)


class Segment:
    """A mapping shared with the processes that receive `fd`.

    Attributes:
        memory: the writable mapping, a buffer of `nbytes`, page aligned.
        fd: descriptor that maps the segment a second time; the owner closes it once no worker needs it.
    """

    def __init__(self, fd: Descriptor, nbytes: int, memory: Any = None) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.memory = mmap.mmap(fd.number, nbytes) if memory is None else memory

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """Create a nameless segment with all of its pages reserved.

        Raises:
            ShortageError: /dev/shm is too small, or full.
            ConfigError: it is missing or not writable; or the limit on file sizes is too low.
            OSError: a limit on the memory of this process is too low.
        """
        # The tracker removes the segment of a killed process. Otherwise it would start only after the name exists.
        resource_tracker.ensure_running()
        # The name contains the pid, so that a segment left by a kill right now can be attributed.
        name = f"vecenv-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            # It is enlarged later: if the class cannot map a large one, the tracker prints a traceback.
            named = shared_memory.SharedMemory(name, create=True, size=1)
        except OSError as error:
            if error.errno in _NO_NAMES:
                raise ConfigError(
                    f"{_SHM_FOLDER}: no shared memory can be made there: {error.strerror}; workers need it. Mount a "
                    "tmpfs there that this user can write to, or have the envs in the process itself "
                    "(backend='serial', or a manager of type 'base')"
                ) from error
            raise
        try:
            fd = Descriptor(os.open(f"{_SHM_FOLDER}/{named.name.lstrip('/')}", os.O_RDWR | os.O_CLOEXEC))
        finally:
            named.unlink()  # before the pages are reserved, which takes some time
            named.close()
        try:
            _reserve(fd.number, nbytes)
            return cls(fd, nbytes)
        except BaseException:
            fd.close()
            raise

    @classmethod
    def in_memory(cls, name: str, nbytes: int) -> Segment:
        """Create a small zeroed segment in a memory file, for a process that shares it with readers only.

        Args:
            name: of the memory file, for tools that list descriptors.
        """
        fd = Descriptor.of_memory(name)
        try:
            os.ftruncate(fd.number, nbytes)
            return cls(fd, nbytes, _map_without_descriptor(fd.number, nbytes))
        except OSError:
            fd.close()
            raise


def _reserve(fd: int, nbytes: int) -> None:
    """Give pages to a segment, in one call: reserving in parts would use up all memory before one part is refused."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(
                f"the batches of this pool need {nbytes / _MIB:.1f} MiB of shared memory, more than a file may have "
                "here; raise `ulimit -f`"
            ) from error
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise ShortageError(_shortage(nbytes)) from error
        raise


def _map_without_descriptor(fd: int, nbytes: int) -> Any:
    """Return a shared mapping as a buffer.

    An `mmap` object keeps a descriptor of its own as long as it has views: an exception that is kept, whose frames
    refer to a closed pool, would keep it open.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, libc.munmap, address, nbytes).atexit = False  # views may be in use until the very end
    return memory


def private_segment(nbytes: int) -> mmap.mmap:
    """Return zeroed memory with the layout of a segment, private to this process."""
    return mmap.mmap(-1, nbytes)


def _shortage(nbytes: int) -> str:
    stats = os.statvfs(_SHM_FOLDER)
    # The first number is rounded up, the second down, so that the shortage shows.
    needed, free = math.ceil(10 * nbytes / _MIB) / 10, math.floor(10 * stats.f_bavail * stats.f_frsize / _MIB) / 10
    return (
        f"{_SHM_FOLDER}: the batches of this pool need {needed} MiB of shared memory, {free} MiB are free. Use "
        "fewer envs, a smaller depth or smaller observations, or enlarge it (in a container: --shm-size)"
    )
