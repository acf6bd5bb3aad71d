"""A program that shows objects of all kinds of its own classes in workers; see `test_main_objects`.

Arguments: a front end, and a start method. The exit code is the number of differences.
"""

import abc
import dataclasses
import enum
import functools
import logging
import sys
import typing
import warnings

import gymnasium
import numpy as np
from gymnasium import spaces

import vecenv
from tests.faults.front_ends import FRONT_ENDS
from tests.inside import pool_of

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
        self.steps = 0
        return np.zeros(1, np.float32), {name: make() for name, make in MAKE.items()}

    def step(self, action):
        if action == 8:
            raise Custom(5, detail="text")
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, False, self.steps == 5, {name: make() for name, make in MAKE.items()}

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


def first_infos(envs):
    """Step a vector env; return the infos of env 0."""
    infos = envs.step(np.zeros(2, np.int64))[-1]
    return {name: infos[name][0] for name in MAKE} if isinstance(infos, dict) else infos[0]


def no_infos(envs):
    """Return no infos: the front end gives none, or numbers only."""
    return {}


def play(name, context, infos=no_infos, is_killed=False, **options):
    front_end = FRONT_ENDS[name]([make] * 2, context=context, **options)
    front_end.open()
    front_end.play(2)
    if is_killed:
        front_end.kill(0)
    if name == "SB3VecEnv":
        wrapped = [front_end.envs.env_is_wrapped(cls) for cls in (Wrapper, gymnasium.wrappers.TimeLimit)]
        assert wrapped == [[True, True], [False, False]]

    def fail():
        front_end.actions = lambda number: np.array([8, 0])
        front_end.play(1)

    return infos(front_end.envs), front_end.call, fail, front_end


def recycled(context):
    infos, call, fail, front_end = play("VectorEnv", context, first_infos, failures={"recycle_after": {"rss_mb": 1}})
    while not front_end.envs.statistics().recycled:
        infos = first_infos(front_end.envs)
    return infos, call, fail, front_end


def manager(cls, context):
    envs = getattr(vecenv.ding, cls)([make] * 2, {"num_workers": 2, "context": context})
    envs.launch()
    timesteps = envs.step({0: np.array(0), 1: np.array(0)})
    first = timesteps[0]
    pool = pool_of(envs)

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


PLAYS = {
    "VectorEnv": functools.partial(play, "VectorEnv", infos=first_infos),
    "serial": functools.partial(play, "VectorEnv", infos=first_infos, backend="serial"),
    "successor": functools.partial(play, "VectorEnv", infos=first_infos, is_killed=True),
    "recycled": recycled,
    "spare envs": functools.partial(play, "VectorEnv", infos=first_infos, num_spare_envs=2),
    "BatchedVectorEnv": functools.partial(play, "BatchedVectorEnv", infos=first_infos),
    "SB3VecEnv": functools.partial(play, "SB3VecEnv", infos=first_infos),
    "Tianshou": functools.partial(play, "Tianshou", infos=first_infos),
    **{name: functools.partial(play, name) for name in ("ALF", "collect", "evaluate", "TorchRL")},
    "sync": functools.partial(manager, "SyncSubprocessEnvManager"),
    "async": functools.partial(manager, "AsyncSubprocessEnvManager"),
    "V2": functools.partial(manager, "SubprocessEnvManagerV2"),
    "shards": shards,
}


def state_of(cls):
    return {name: value for name, value in vars(cls).items() if not name.startswith(("_abc", "__slotnames__"))}


def main(name, context):
    found = []

    def check(is_right, *what):
        if not is_right:
            found.append(what)
            print("WRONG", *what)

    before = {cls: state_of(cls) for cls in CLASSES}
    infos, call, fail, envs = PLAYS[name](context)
    for kind, make_one in MAKE.items():
        if infos:
            check(identity(infos[kind]) is identity(make_one()), "info", kind, infos[kind])
        answer = call("give", kind)[0]
        check(identity(answer) is identity(make_one()), "result", kind, answer)
        check(all(call("has_same", kind, make_one())), "argument", kind)
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
