"""Handlers of signals that raise, at every moment of a pool's life: nothing is left, and nothing is printed."""

from __future__ import annotations

import textwrap
from pathlib import Path

from .programs import program, recovering, run

#: How often the work of a program is begun.
NUM_CUTS = {"forkserver": 25, "spawn": 5, "fork": 25}
#: A handler that raises is called after a random span of what is to be cut.
CUT = """
    import gc, psutil, random, time, warnings
    warnings.simplefilter("ignore")  # of forks
    me, rng = psutil.Process(), random.Random(SEED)
    class Cut(BaseException):
        pass
    def cuts(signum, frame):
        raise Cut
    signal.signal(signal.SIGALRM, cuts)
    def cut(work, seconds):
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Cut:
            return True
        return False
    def took(work):
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    def assert_nothing_is_left(helpers, fds):
        gc.collect()
        left = [child for child in me.children(recursive=True) if child.pid not in helpers]
        assert not psutil.wait_procs(left, timeout=10)[1], left
        assert segments() == 0
        assert me.num_fds() == fds, (me.num_fds(), fds)
"""


def test_a_start_that_is_cut_short_leaves_nothing(start_method: str, tmp_path: Path) -> None:
    """With another thread, as one of a BLAS, that takes the signals which the main thread has blocked."""
    source = program(CUT.replace("SEED", "1")) + textwrap.dedent(
        f"""
        import threading
        end = threading.Event()
        threading.Thread(target=end.wait).start()
        def begin():
            with ProcessPool([toys.CountEnv] * 4, PoolOptions(num_workers=2, context={start_method!r})) as pool:
                pool.start()
        first_cut = cut(begin, 0.01)  # also of what serves all pools
        begin()
        helpers = [child.pid for child in me.children(recursive=True)]
        fds = me.num_fds()
        seconds = min(took(begin), took(begin))  # the system may have been at something else
        cuts = sum(cut(begin, rng.uniform(0, seconds)) for _ in range({NUM_CUTS[start_method]}))
        assert_nothing_is_left(helpers, fds)
        end.set()
        print(first_cut, cuts > 0)
        """
    )
    done = run(source, tmp_path, timeout=120)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True True\n")


def test_a_run_that_is_cut_short_leaves_nothing(start_method: str, tmp_path: Path) -> None:
    """While workers die and are replaced, and while the pool ends."""
    source = recovering(CUT.replace("SEED", "2")) + textwrap.dedent(
        f"""
        failures = FailurePolicy(on_failure="recover", max_restarts=10000)
        options = PoolOptions(num_workers=2, context={start_method!r}, failures=failures)
        def work():
            with ProcessPool([toys.CountEnv] * 4, options) as pool:
                pool.start()
                pool.reset()
                pool.recv().raise_errors()
                for step in range(20):
                    if step % 10 == 5:
                        os.kill(pool.worker_pids[step % 2], signal.SIGKILL)
                    pool.send(np.zeros(4, np.int64))
                    pool.recv().raise_errors()
        work()
        helpers = [child.pid for child in me.children(recursive=True)]
        fds = me.num_fds()
        seconds = took(work)
        cuts = sum(cut(work, rng.uniform(0, seconds)) for _ in range({NUM_CUTS[start_method]}))
        assert_nothing_is_left(helpers, fds)
        print(cuts > 0)
        """
    )
    done = run(source, tmp_path, timeout=120)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n")
