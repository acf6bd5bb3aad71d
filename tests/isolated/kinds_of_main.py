"""A program that shows objects of all kinds of its own classes in workers; see `test_main_objects`.

Arguments: a face, and a start method. The exit code is the number of differences.
"""

import abc
import dataclasses
import enum
import functools
import logging
import os
import signal
import sys
import typing
import warnings

import gymnasium
import numpy as np
from gymnasium import spaces

import vecenv

warnings.simplefilter("ignore")
logging.getLogger("vecenv").setLevel(logging.CRITICAL)


@dataclasses.dataclass
class Data:
    x: int = 1
    many: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, frozen=True)
class SlotData:
    x: int = 1


class Slots:
    __slots__ = ("x", "__hidden")

    def __init__(self, x):
        self.x, self.__hidden = x, 7

    def hidden(self):
        return self.__hidden


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Perm(enum.Flag):
    R = 1
    W = 2


class Point(typing.NamedTuple):
    x: int
    y: int = 2


class Meta(type):
    table = {}

    def __new__(meta, name, bases, ns, **kw):
        cls = super().__new__(meta, name, bases, ns)
        meta.table[name] = cls
        return cls


class WithMeta(metaclass=Meta):
    pass


class Custom(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")
        self.code, self.detail = code, detail


class Outer:
    class Inner:
        class Deep:
            pass


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, value=None):
        self.value = value


class Base(abc.ABC):
    @abc.abstractmethod
    def run(self): ...
    def name(self):
        return "base"


class Derived(Base):
    def run(self):
        return super().name()

    def name(self):
        return "derived " + super().name()


def double(x):
    return 2 * x


@functools.lru_cache
def cached(x):
    return x


UserId = typing.NewType("UserId", int)


class Missing:
    def __reduce__(self):
        return "MISSING"


MISSING = Missing()


class Single:
    _one = None

    def __new__(cls):
        if cls._one is None:
            cls._one = super().__new__(cls)
        return cls._one


class Space(spaces.Discrete):
    pass


class Wrapper(gymnasium.Wrapper):
    pass


MAKE = {
    "dataclass": lambda: Data(3),
    "dataclass with slots": lambda: SlotData(4),
    "slots": lambda: Slots(5),
    "enum": lambda: Color.GREEN,
    "flag": lambda: Perm.R | Perm.W,
    "named tuple": lambda: Point(1),
    "metaclass": lambda: WithMeta(),
    "nested class": lambda: Outer.Inner(),
    "deeply nested class": lambda: Outer.Inner.Deep(),
    "generic": lambda: Box(Data()),
    "subclass of an abstract class": lambda: Derived(),
    "function": lambda: double,
    "partial": lambda: functools.partial(double, 3),
    "cached function": lambda: cached,
    "new type": lambda: UserId,
    "object that pickles as its name": lambda: MISSING,
    "singleton": lambda: Single(),
    "class": lambda: Data,
    "method": lambda: Derived().name,
}
CLASSES = (Data, SlotData, Slots, Color, Perm, Point, WithMeta, Custom, Outer, Outer.Inner, Box, Base, Derived, Meta)


def identity(value):
    """Return the part of a value that must be the same object here and after its return from a worker."""
    if isinstance(value, functools.partial):
        return value.func
    if type(value) in (Color, Perm, Missing, Single) or isinstance(value, type) or value in (double, cached, UserId):
        return value
    return type(getattr(value, "__self__", value))


class Env(gymnasium.Env):
    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(-9, 9, (1,), np.float32), Space(9)
        self.late = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {name: make() for name, make in MAKE.items()}

    def step(self, action):
        if action == 8:
            raise Custom(5, detail="text")
        return np.zeros(1, np.float32), 0.0, False, False, {name: make() for name, make in MAKE.items()}

    def give(self, name):
        return MAKE[name]()

    def has_same(self, name, value):
        return identity(value) is identity(MAKE[name]())

    def set_late(self, value):
        self.late = value

    def get_late(self):
        return self.late


def make():
    return Wrapper(Env())


def vector(context):
    envs = vecenv.VectorEnv([make] * 2, context=context, num_workers=2)
    _, infos = envs.reset(seed=0)

    def fail():
        envs.step(np.array([8, 0]))

    return {name: values[0] for name, values in infos.items()}, envs.call, fail, envs


def successor(context):
    infos, call, fail, envs = vector(context)
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    infos = envs.step(np.array([0, 0]))[4]
    return {name: values[0] for name, values in infos.items()}, call, fail, envs


def sb3(context):
    from vecenv.integrations.sb3 import SB3VecEnv

    envs = SB3VecEnv([make] * 2, context=context, num_workers=2)
    envs.reset()
    assert (
        envs.env_is_wrapped(Wrapper) == [True, True] and envs.env_is_wrapped(gymnasium.wrappers.TimeLimit)[0] is False
    )
    infos = envs.step(np.array([0, 0]))[2:][-1]
    return infos[0], envs.env_method, lambda: envs.step(np.array([8, 0])), envs


def manager(cls, context):
    envs = getattr(vecenv, cls)([make] * 2, {"num_workers": 2, "context": context})
    envs.launch()
    timesteps = envs.step({0: np.array(0), 1: np.array(0)})
    first = timesteps[0]
    pool = envs._launch.pool

    def call(name, *args):
        return pool.call(functools.partial(_call, name, args))

    return ({} if cls == "SubprocessEnvManagerV2" else first.info), call, None, envs


def _call(name, args, env):
    return getattr(env.env.unwrapped, name)(*args)


def shards(context):
    from vecenv.core.options import PoolOptions
    from vecenv.core.pool.pool import Pool
    from vecenv.core.shards.local_carrier import LocalCarrier
    from vecenv.core.shards.sharded_engine import ShardedEngine

    options = PoolOptions(num_workers=1, context=context)
    pool = Pool(ShardedEngine([make] * 2, options, carrier=LocalCarrier(), num_shards=2))
    pool.start()
    pool.reset(seeds=[0, 1])
    infos = pool.recv().infos()

    def call(name, *args):
        return pool.call(functools.partial(_call_plain, name, args))

    def fail():
        pool.send(np.array([8, 0]))
        pool.recv().raise_errors()

    return infos[0], call, fail, pool


def _call_plain(name, args, env):
    return getattr(env.unwrapped, name)(*args)


FACES = {
    "VectorEnv": vector,
    "successor": successor,
    "SB3VecEnv": sb3,
    "sync": functools.partial(manager, "SyncSubprocessEnvManager"),
    "async": functools.partial(manager, "AsyncSubprocessEnvManager"),
    "V2": functools.partial(manager, "SubprocessEnvManagerV2"),
    "shards": shards,
}


def state_of(cls):
    return {name: value for name, value in vars(cls).items() if not name.startswith(("_abc", "__slotnames__"))}


def main(face, context):
    found = []

    def check(is_right, *what):
        if not is_right:
            found.append(what)
            print("WRONG", face, context, *what)

    before = {cls: state_of(cls) for cls in CLASSES}
    infos, call, fail, envs = FACES[face](context)
    for name, make_one in MAKE.items():
        if infos:  # the V2 manager makes trees of them
            check(identity(infos[name]) is identity(make_one()), "info", name, infos[name])
        answer = call("give", name)[0]
        check(identity(answer) is identity(make_one()), "result", name, answer)
        check(all(call("has_same", name, make_one())), "argument", name)
    global Late

    class Late:
        number = 0

    class Local:
        number = 0

    for cls in (Late, Local):  # defined when the envs exist
        call("set_late", cls())
        cls.number = 5
        check(isinstance(call("get_late")[0], cls) and cls.number == 5, "late class", cls)
    if fail is not None:
        try:
            fail()
            check(False, "no exception")
        except Custom as error:
            check((error.code, error.detail) == (5, "text"), "exception", vars(error))
    for cls, state in before.items():
        check(state_of(cls) == state, "changed", cls)
    envs.close()
    return len(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
