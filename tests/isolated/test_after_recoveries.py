"""Whole programs in which workers died and were replaced: they leave as little as others do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .programs import assert_gone, recovering, run

ENDS = {
    "closed": ("pool.close()", 0, ""),
    "forgotten": ("", 0, ""),
    "exception": ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
    "interrupted": ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -signal.SIGINT, "KeyboardInterrupt"),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -signal.SIGTERM, ""),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
}


@pytest.mark.parametrize("end", ENDS)
def test_program_that_recovered_leaves_nothing(end: str, tmp_path: Path) -> None:
    last, code, says = ENDS[end]
    source = recovering(
        f"""
        pool = recovering()
        print(*pool.worker_pids)
        kill_worker(pool, 0)
        kill_worker(pool, 1)
        kill_worker(pool, 1)
        assert pool.statistics()["restarts"] == 3
        print(*pool.worker_pids, flush=True)
        {last}
        """
    )
    done = run(source, tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr and (says or done.stderr == "")
    before, after = [[int(pid) for pid in line.split()] for line in done.stdout.splitlines()]
    assert len({*before, *after}) == 4
    assert_gone(before + after)


@pytest.mark.extended
def test_many_recoveries_leak_nothing(start_method: str, tmp_path: Path) -> None:
    """Descriptors of stack files, of segments and of processes are those of the living."""
    rounds = 30 if start_method == "forkserver" else 4
    ignore = "import warnings; warnings.simplefilter('ignore')" if start_method == "fork" else ""
    source = recovering(
        f"""
        {ignore}
        import gc, psutil, threading
        me = psutil.Process()
        def holdings():
            gc.collect()
            return me.num_fds(), threading.active_count(), segments(), me.num_threads()
        pool = recovering(context={start_method!r})
        for number in range(2):
            kill_worker(pool, number % 2)
        before, rss = holdings(), me.memory_info().rss
        for number in range({rounds}):
            kill_worker(pool, number % 2)
        assert pool.statistics()["restarts"] == {rounds} + 2
        assert holdings() == before, (holdings(), before)
        assert me.memory_info().rss - rss < 4 << 20, me.memory_info().rss - rss
        pool.close()
        """
    )
    done = run(source, tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extended
def test_opening_recovering_and_closing_leaks_nothing(tmp_path: Path) -> None:
    source = recovering(
        """
        import gc, psutil, threading
        me = psutil.Process()
        def holdings():
            gc.collect()
            return me.num_fds(), threading.active_count(), segments(), me.num_threads()
        def once():
            pool = recovering()
            kill_worker(pool, 0)
            pool.close()
        for _ in range(3):
            once()
        before, rss = holdings(), me.memory_info().rss
        for _ in range(15):
            once()
        assert holdings() == before, (holdings(), before)
        assert me.memory_info().rss - rss < 8 << 20, me.memory_info().rss - rss
        """
    )
    done = run(source, tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extended
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda sign: sign.name)
def test_program_that_ends_during_a_replacement_leaves_nothing(sign: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        recovering(
            f"""
            import threading
            folder = {str(tmp_path)!r}
            class SlowSecondTime(toys.CountEnv):
                def __init__(self):
                    super().__init__()
                    path = os.path.join(folder, "built")
                    if os.path.exists(path):
                        print(os.getpid(), flush=True)
                        threading.Event().wait()
                    open(path, "x").close()
            pool = recovering(1, SlowSecondTime, num_workers=1)
            print(*pool.worker_pids, flush=True)
            kill_worker(pool, 0)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline()), int(process.stdout.readline())]
    process.send_signal(sign)
    _, err = process.communicate(timeout=30)
    assert process.returncode == -sign
    assert ("KeyboardInterrupt" in err) == (sign == signal.SIGINT) and "leaked" not in err
    assert_gone(pids)
