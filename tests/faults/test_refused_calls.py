"""The system refuses system calls, as seccomp filters of containers do: pools do without pidfds and files in memory."""

from __future__ import annotations

import errno
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.isolated.programs import assert_gone, recovering

#: Numbers of system calls; those of newer ones are the same on all machines.
NUMBERS = {
    "memfd_create": {"x86_64": 319, "aarch64": 279}.get(platform.machine(), -1),
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
}
#: Installs a filter that refuses system calls, and executes a program under it.
FILTER = """
import ctypes, os, struct, sys
error, numbers, program = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
lines = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load the number of the call
for number in map(int, numbers):
    lines.append(struct.pack("HBBI", 0x15, 0, 1, number))  # unless it is equal, skip one line
    lines.append(struct.pack("HBBI", 0x06, 0, 0, 0x50000 | error))  # return the error
lines.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # allow the call
code = ctypes.create_string_buffer(b"".join(lines))
header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
NO_NEW_PRIVS, SECCOMP, FILTER_MODE = 38, 22, 2
if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER_MODE, header, 0, 0):
    sys.exit(77)
os.execv(program[0], program)
"""
NO_FILTERS = 77


def run_refused(source: str, folder: Path, error: int, calls: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a program, whose processes get this error from these system calls."""
    (folder / "script.py").write_text(source)
    numbers = ",".join(str(NUMBERS[call]) for call in calls)
    command = [sys.executable, "-c", FILTER, str(error), numbers, sys.executable, "-W", "error", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    if done.returncode == NO_FILTERS:
        pytest.skip("the system gives no seccomp filters")
    return done


RECOVERS = """
pool = recovering(context="{context}")
for worker_id in range(2):
    kill_worker(pool, worker_id)
print(pool.statistics()["restarts"])
pool.close()
"""


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("calls", [("pidfd_open", "pidfd_send_signal"), ("memfd_create",)], ids=["pidfd", "memfd"])
def test_pool_recovers_without_calls_that_the_system_refuses(
    calls: tuple[str, ...], error: str, start_method: str, tmp_path: Path
) -> None:
    source = recovering(RECOVERS.format(context=start_method))
    done = run_refused(source, tmp_path, getattr(errno, error), calls)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_workers_end_with_their_parent_without_pidfds(start_method: str, tmp_path: Path) -> None:
    source = recovering(
        f"""
        pool = recovering(context="{start_method}")
        print(*pool.worker_pids, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = run_refused(source, tmp_path, 1, ("pidfd_open", "pidfd_send_signal", "memfd_create"))
    assert done.returncode == -9 and done.stderr == ""
    assert_gone([int(pid) for pid in done.stdout.split()])


def test_doctor_names_calls_that_the_system_refuses(tmp_path: Path) -> None:
    source = "import vecenv.cli, sys; sys.exit(vecenv.cli.main(['doctor']))"
    done = run_refused(source, tmp_path, 1, ("pidfd_open", "memfd_create"))
    out = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert "note pidfd_open: the death of a worker is noticed through a pipe" in out
    assert "note memfd_create: stacks of workers and counters are kept in temporary files" in out
    assert "ok two workers start, step and end" in out
