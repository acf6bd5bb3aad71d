"""Names that are known without an import by the caller: each in a program of its own that has imported nothing yet."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.programs import run_python

TOY = """
    import gymnasium
    from vecenv.envs.toys import ToyEnv
    class Own(ToyEnv):
        pass
    gymnasium.register("{name}", "{module}:Own", max_episode_steps=7)
"""


def run(folder: Path, source: str, *flags: str) -> list[str]:
    """Run a program in this folder; return the lines that it printed."""
    (folder / "program.py").write_text(textwrap.dedent(source))
    done = run_python(*flags, "program.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Overriding" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def write_module(folder: Path, module: str, name: str) -> None:
    (folder / f"{module}.py").write_text(textwrap.dedent(TOY).format(name=name, module=module))


# ---- Gymnasium's registry ----------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("flags", [(), ("-W", "error")], ids=["warnings", "warnings are errors"])
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_do_not_warn_about_the_programs_registrations(
    context: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """The worker knew the env's name before it imported the module that registers it."""
    write_module(tmp_path, "own_envs", "Own-v0")
    source = f"""
        import gymnasium, own_envs
        from vecenv import VectorEnv
        envs = VectorEnv([lambda: gymnasium.make("Own-v0")] * 2, num_workers=2, context="{context}")
        print(*envs.reset(seed=0)[0][:, 0], *(spec.max_episode_steps for spec in envs.get_attr("spec")))
        envs.close()
    """
    assert run(tmp_path, source, *flags) == ["0.0 0.0 7 7"]


#: The way to make an Atari game, and the expected output.
ATARI = {
    "load": ("env = vecenv.alf.load('{name}')\nprint(env.reset().is_first())", "True"),
    "make_vec": ("env = vecenv.make_vec('{name}', 2, 'serial')\nprint(len(env.reset(seed=0)[0]))", "2"),
    "register_vec": ("print(vecenv.register_vec('{name}', 'Game-v0'))", "Game-v0"),
    "env_id": ("env = vecenv.ding.DingEnvWrapper(cfg=dict(env_id='{name}'))\nprint(env.reset() is not None)", "True"),
}


@pytest.mark.extended
@pytest.mark.parametrize("how", ATARI)
def test_atari_games_are_known_without_an_import_of_ale_py(how: str, tmp_path: Path) -> None:
    """Here with a package of that name which has one toy game."""
    write_module(tmp_path, "ale_py", "ALE/Toy-v5")
    program, says = ATARI[how]
    source = f"import vecenv, vecenv.alf\n{program.format(name='ALE/Toy-v5')}\n"
    assert run(tmp_path, source) == [says]


@pytest.mark.extended
@pytest.mark.parametrize("how", ["load", "make_vec"])
def test_pong_is_known_without_an_import_of_ale_py(how: str, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    program, says = ATARI[how]
    assert run(tmp_path, f"import vecenv, vecenv.alf\n{program.format(name='ALE/Pong-v5')}\n") == [says]


@pytest.mark.extended
@pytest.mark.parametrize("how", ["load", "make_vec"])
def test_game_without_ale_py_names_the_package(how: str, tmp_path: Path) -> None:
    program, _ = ATARI[how]
    source = f"""
        import sys, vecenv, vecenv.alf
        sys.modules["ale_py"] = None  # as where it is not installed
        try:
            {program.format(name="ALE/Pong-v5").splitlines()[0]}
        except vecenv.DependencyError as error:
            print("ale" in str(error), "pip install" in str(error))
    """
    assert run(tmp_path, source) == ["True True"]


@pytest.mark.extended
def test_env_that_is_not_registered_is_still_unknown(tmp_path: Path) -> None:
    write_module(tmp_path, "ale_py", "ALE/Toy-v5")
    source = """
        import gymnasium, vecenv, vecenv.alf
        for make in (vecenv.make_vec, vecenv.alf.load):
            for name in ("NoSuchEnv-v0", "ALE/NoSuchGame-v5"):
                try:
                    make(name)
                except gymnasium.error.Error as error:
                    print("NoSuch" in str(error))
    """
    assert run(tmp_path, source) == ["True"] * 4


# ---- vecenv's own registries ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "vecenv.ding.ENV_REGISTRY.get('connect4').__name__ == 'Connect4Env'",
        "vecenv.ding.ENV_REGISTRY['two_agents'].__name__ == 'TwoAgentEnv'",
        "'gomoku' in vecenv.ding.ENV_REGISTRY and 'chequers' not in vecenv.ding.ENV_REGISTRY",
        "vecenv.ding.ENV_MANAGER_REGISTRY.get('subprocess').__name__ == 'SyncSubprocessEnvManager'",
        "set(vecenv.ding.ENV_MANAGER_REGISTRY.query()) >= {'base', 'subprocess', 'async_subprocess'}",
        "len(vecenv.ding.ENV_MANAGER_REGISTRY) > 3",
        "len(list(vecenv.ding.ENV_WRAPPER_REGISTRY)) > 10",
        "vecenv.ding.get_env_cls({'type': 'gomoku'}).__name__ == 'GomokuEnv'",
        "vecenv.ding.get_env_manager_cls({'type': 'base'}).__name__ == 'BaseEnvManager'",
    ],
)
def test_registries_know_their_own_names_after_import_vecenv(expression: str, tmp_path: Path) -> None:
    source = f"import vecenv\nprint({expression})\n"
    assert run(tmp_path, source, "-W", "error") == ["True"]


@pytest.mark.extended
def test_own_name_may_be_registered_first(tmp_path: Path) -> None:
    source = """
        import vecenv
        vecenv.ding.ENV_REGISTRY.register("mine", dict)
        registry = vecenv.ding.ENV_REGISTRY
        print("mine" in registry, "connect4" in registry, registry.get("mine") is dict)
        try:
            vecenv.ding.ENV_REGISTRY.get("conect4")
        except KeyError as error:
            print("did you mean" in str(error))
    """
    assert run(tmp_path, source) == ["True True True", "True"]


@pytest.mark.extended
@pytest.mark.parametrize("is_forced", [False, True])
def test_name_of_vecenv_is_taken_from_the_start(is_forced: bool, tmp_path: Path) -> None:
    """Not only once another name has been asked for, when it is too late to say so."""
    source = f"""
        import vecenv
        try:
            vecenv.ding.ENV_REGISTRY.register("connect4", dict, force_overwrite={is_forced})
        except vecenv.ConfigError as error:
            print("already registered" in str(error))
        registry = vecenv.ding.ENV_REGISTRY
        print(registry.get("gomoku") is vecenv.ding.GomokuEnv, registry.get("connect4").__name__)
    """
    assert run(tmp_path, source) == (["True dict"] if is_forced else ["True", "True Connect4Env"])


# ---- names of the program itself --------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_wrappers_of_the_program_are_found_by_a_spec(context: str, tmp_path: Path) -> None:
    source = f"""
        import gymnasium, vecenv
        from gymnasium.utils import RecordConstructorArgs
        class Doubled(gymnasium.RewardWrapper, RecordConstructorArgs):
            def __init__(self, env):
                RecordConstructorArgs.__init__(self)
                super().__init__(env)
            def reward(self, reward):
                return 2 * reward
        if __name__ == "__main__":
            env = Doubled(gymnasium.make("CartPole-v1"))
            gymnasium.register("Doubled-v0", env.spec.entry_point, additional_wrappers=env.spec.additional_wrappers)
            for make in (env.spec, "Doubled-v0"):
                envs = vecenv.make_vec(make, 2, context="{context}")
                envs.reset(seed=0)
                print(*envs.step([0, 0])[1])
                envs.close()
    """
    assert run(tmp_path, source) == ["2.0 2.0"] * 2


@pytest.mark.extended
def test_replay_uses_the_registry_of_the_program_that_failed(tmp_path: Path) -> None:
    source = """
        import glob, os, signal, gymnasium, vecenv
        from gymnasium.envs.classic_control import MountainCarEnv
        from vecenv.core.recovery import reproducer
        class Failing(MountainCarEnv):
            def step(self, action):
                self.count = getattr(self, "count", 0) + 1
                if self.count == 4:
                    os.kill(os.getpid(), signal.SIGKILL) if os.getpid() != PID else 1 / 0
                return super().step(action)
        if __name__ == "__main__":
            PID = os.getpid()
            del gymnasium.registry["MountainCar-v0"]
            gymnasium.register("MountainCar-v0", "__main__:Failing", max_episode_steps=50)
            failures = vecenv.FailurePolicy(reproducer_dir=".")
            envs = vecenv.make_vec("MountainCar-v0", 1, failures=failures)
            envs.reset(seed=0)
            for _ in range(4):
                envs.step([0])
            envs.close()
            own = gymnasium.registry["MountainCar-v0"] = gymnasium.envs.registration.EnvSpec("MountainCar-v0", "no:Env")
            episode = reproducer.load(*glob.glob("*.vecenv-episode"))
            try:
                print(*(event.op for event in episode.run()))
            except ZeroDivisionError:
                print("failed")
            print(gymnasium.registry["MountainCar-v0"] is own)
    """
    assert run(tmp_path, source) == ["failed", "True"]


@pytest.mark.extended
def test_callable_entry_point_of_another_env_imports_nothing_in_workers(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("from vecenv.envs.toys import ToyEnv\nclass Large(ToyEnv):\n    pass\n")
    (tmp_path / "own.py").write_text(
        "import sys\nfrom vecenv.envs.toys import ToyEnv\nclass Own(ToyEnv):\n"
        "    @property\n    def imported(self):\n        return 'large' in sys.modules\n"
    )
    source = """
        import gymnasium, large, own
        from vecenv import VectorEnv
        gymnasium.register("Large-v0", large.Large)
        for env_fn in (own.Own, lambda: gymnasium.make("Large-v0").unwrapped):
            envs = VectorEnv([env_fn], num_workers=1)
            print(envs.reset(seed=0)[0].shape, *(envs.get_attr("imported") if env_fn is own.Own else ()))
            envs.close()
    """
    shape = "(1, 4)"
    assert run(tmp_path, source) == [f"{shape} False", shape]


@pytest.mark.extended
def test_entry_point_by_id_is_refused_as_an_id(tmp_path: Path) -> None:
    """Gymnasium would make CartPole's own vector env without a word."""
    source = """
        import gymnasium
        for kwargs in ({"vectorization_mode": "vector_entry_point"}, {}):
            try:
                print(gymnasium.make_vec("vecenv.vector.by_id:CartPole-v1", num_envs=2, **kwargs))
            except gymnasium.error.Error as error:
                print("register_vec" in str(error))
        gymnasium.register("Own-v0", vector_entry_point="vecenv.vector.by_id:CartPole-v1")
        envs = gymnasium.make_vec("Own-v0", num_envs=2, backend="serial")
        print(type(envs).__module__)
        envs.close()
    """
    assert run(tmp_path, source) == ["True", "True", "vecenv.vector.env"]
