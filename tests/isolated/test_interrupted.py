"""Handlers of signals that raise, at every moment of a pool's life: nothing is left, and nothing is printed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from .programs import program, recovering, run

#: The number of interrupts in a vector env.
NUM_INTERRUPTS = 60
#: How often the work of a program is started.
NUM_CUTS = {"forkserver": 12, "spawn": 3, "fork": 12}
#: Calls a handler that raises, after a random time within the work.
CUT = """
    import gc, psutil, random, sys, time, warnings
    warnings.simplefilter("ignore")  # of forks
    me, rng = psutil.Process(), random.Random(SEED)
    class Cut(BaseException):
        pass
    def cuts(signum, frame):
        raise Cut
    signal.signal(signal.SIGALRM, cuts)
    def report(unraisable):  # Python cannot raise the exception of a handler that ran inside a finalizer or callback
        if not issubclass(unraisable.exc_type, Cut):
            sys.__unraisablehook__(unraisable)
    sys.unraisablehook = report
    def cut(work, seconds):
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Cut:
            gc.collect()  # a pool that is left ends now, not during the next work
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


@pytest.mark.extended
def test_interrupted_start_leaves_nothing(start_method: str, tmp_path: Path) -> None:
    """A second thread, like one of a BLAS, receives the signals that the main thread has blocked."""
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


@pytest.mark.extended
def test_interrupted_run_leaves_nothing(start_method: str, tmp_path: Path) -> None:
    """While workers die and are replaced, and while the pool ends."""
    source = recovering(CUT.replace("SEED", "2")) + textwrap.dedent(
        f"""
        failures = PoolFailurePolicy(on_failure="recover", max_restarts=10000)
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


ENV = """
    import gymnasium, vecenv
    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        action_space = gymnasium.spaces.Discrete(5)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps, self.option = 0, (options or {}).get("option", 0.0)
            return np.array([self.np_random.random(), self.option, 0.0]), {"word": "reset"}
        def step(self, action):
            self.steps += 1
            obs = np.array([self.np_random.random(), self.option, float(self.steps)])
            return obs, 1.0, self.steps == 20, False, {"word": "step"}
        def double(self, value):
            return 2 * value
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    Cut = KeyboardInterrupt
"""


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_ctrl_c_in_any_operation_allows_a_new_reset(backend: str, implementation: str, tmp_path: Path) -> None:
    """Steps, resets with and without options, calls, sends and receives: a later reset works normally."""
    source = program(CUT.replace("SEED", "3") + ENV) + textwrap.dedent(
        f"""
        kwargs = {{}} if "{backend}" == "serial" else dict(timeouts=20.0, num_workers=2)
        envs = vecenv.VectorEnv([Env] * 4, backend="{backend}", **kwargs)
        alone = [Env() for _ in range(4)]
        actions = np.zeros(4, np.int64)
        def work():
            for what in rng.choices(range(5), k=100):
                if what == 0:
                    envs.step(actions)
                elif what == 1:
                    envs.reset(seed=rng.randrange(100), options={{"option": 2.0}})
                elif what == 2:
                    envs.reset(seed=rng.randrange(100))
                elif what == 3:
                    assert envs.call("double", 3) == (6,) * 4
                else:
                    envs.send(actions)
                    while envs.pool.outstanding():
                        envs.recv(1)
        cuts = 0
        envs.reset(seed=0)
        while cuts < {NUM_INTERRUPTS}:
            cuts += cut(work, rng.uniform(0, 0.002))
            seed = rng.randrange(100)
            obs, infos = envs.reset(seed=seed)
            assert np.array_equal(obs, [env.reset(seed=seed + i)[0] for i, env in enumerate(alone)])
            assert infos["word"].tolist() == ["reset"] * 4
            assert envs.call("double", 4) == (8,) * 4
            obs, *_, infos = envs.step(actions)
            assert np.array_equal(obs, [env.step(0)[0] for env in alone])
            assert infos["word"].tolist() == ["step"] * 4 and "recovered" not in infos
        envs.close()
        """
    )
    done = run(source, tmp_path, timeout=120)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["BaseEnvManager", "SyncSubprocessEnvManager", "AsyncSubprocessEnvManager"])
def test_ctrl_c_in_any_operation_allows_a_reset_of_a_manager(kind: str, tmp_path: Path) -> None:
    source = program(CUT.replace("SEED", "4") + ENV) + textwrap.dedent(
        f"""
        manager = vecenv.{kind}([Env] * 4, {{}} if "{kind}" == "BaseEnvManager" else {{"num_workers": 2}})
        alone = [Env() for _ in range(4)]
        manager.launch()
        def work():
            for what in rng.choices(range(4), [6, 1, 1, 1], k=100):
                if what == 0:
                    if not manager.ready_obs:
                        manager.reset()
                    manager.step(dict.fromkeys(manager.ready_obs, 0))
                elif what == 1:
                    manager.reset()
                elif what == 2:
                    manager.reset({{1: {{"options": {{"option": 2.0}}}}, 2: None}})
                else:
                    manager.option
        cuts = 0
        while cuts < {NUM_INTERRUPTS}:
            cuts += cut(work, rng.uniform(0, 0.003))
            seed = rng.randrange(100)
            manager.seed(seed, dynamic_seed=False)
            manager.reset(dict.fromkeys(range(4)))
            obs = manager.ready_obs
            first = [env.reset(seed=seed + i)[0] for i, env in enumerate(alone)]
            assert sorted(obs) == [0, 1, 2, 3] and np.array_equal([obs[i] for i in range(4)], first)
            steps = {{}}
            while len(steps) < 4:
                found = manager.step({{i: 0 for i in manager.ready_obs if i not in steps}})
                steps.update((int(i), timestep.obs) for i, timestep in found.items())
            assert np.array_equal([steps[i] for i in range(4)], [env.step(0)[0] for env in alone])
        manager.close()
        """
    )
    done = run(source, tmp_path, timeout=120)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
