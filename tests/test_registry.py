"""Registries: names, duplicates, unknown names, constructors' own errors."""

import pickle
import sys
import threading
import types

import pytest

from vecenv.errors import ConfigError, UnknownNameError
from vecenv.registry import ENV_MANAGER_REGISTRY, ENV_REGISTRY, ENV_WRAPPER_REGISTRY, Registry, import_modules


@pytest.fixture
def animals():
    registry = Registry("animal")
    registry.register("cat", lambda name="tom": ("cat", name))
    registry.register("camel", lambda: "camel")
    return registry


def test_register_as_decorator_and_as_call():
    registry = Registry("thing")

    @registry.register("named")
    class Named:
        pass

    @registry.register()
    def unnamed():
        return 1

    assert registry.register("called", dict) is dict
    assert registry.get("named") is Named
    assert registry.build("unnamed") == 1
    assert registry["called"] is dict
    assert registry.keys() == registry.query() == tuple(registry) == ("named", "unnamed", "called")
    assert len(registry) == 3
    assert "named" in registry
    assert "other" not in registry


def test_build_passes_arguments(animals):
    assert animals.build("cat", "felix") == animals.build("cat", name="felix") == ("cat", "felix")


def test_build_passes_keywords_named_like_its_own():
    registry = Registry("thing")
    registry.register("echo", lambda **kwargs: kwargs)
    assert registry.build("echo", name="a", obj="b") == {"name": "a", "obj": "b"}


def test_taken_name_is_refused_unless_forced(animals):
    with pytest.raises(ConfigError, match="animal 'cat' is already registered as .*force_overwrite=True"):
        animals.register("cat", dict)
    with pytest.raises(AssertionError):
        animals.register("cat")(dict)
    animals.register("cat", dict, force_overwrite=True)
    assert animals.get("cat") is dict


@pytest.mark.parametrize("name", [3, ("a",)])
def test_names_are_strings(animals, name):
    with pytest.raises(ConfigError, match="expected a name for the animal"):
        animals.register(name, dict)


@pytest.mark.parametrize("ask", [Registry.get, Registry.build, Registry.__getitem__])
def test_unknown_name_error_names_its_neighbours(animals, ask):
    with pytest.raises(UnknownNameError) as caught:
        ask(animals, "kamel")
    assert str(caught.value) == "unknown animal 'kamel'; did you mean 'camel'?"
    assert caught.value.name == "kamel"
    assert caught.value.known == ("cat", "camel")
    assert isinstance(caught.value, KeyError)


def test_unknown_name_error_without_neighbours_names_all(animals):
    with pytest.raises(KeyError, match="unknown animal 'zebra'; known are 'camel', 'cat'"):
        animals.get("zebra")


def test_empty_registry_error_points_to_import_names():
    with pytest.raises(UnknownNameError, match="unknown animal 'cat'; none is registered; .* import_names"):
        Registry("animal").get("cat")


def test_unhashable_name_is_unknown(animals):
    with pytest.raises(UnknownNameError):
        animals.get(["cat"])


def test_key_error_of_a_constructor_is_raised_unchanged(animals):
    animals.register("picky", lambda cfg: cfg["size"])
    with pytest.raises(KeyError, match="size") as caught:
        animals.build("picky", {})
    assert type(caught.value) is KeyError


def test_three_registries_exist():
    kinds = [registry.kind for registry in (ENV_REGISTRY, ENV_MANAGER_REGISTRY, ENV_WRAPPER_REGISTRY)]
    assert kinds == ["env", "env manager", "env wrapper"]


@pytest.mark.parametrize("first", ["a look", "a registration"])
def test_homes_are_imported_once_before_a_lookup(first, tmp_path, monkeypatch):
    text = "import test_homes_here as here\nhere.registry.register('cat', dict)\nhere.imports.append(__name__)\n"
    here = types.ModuleType("test_homes_here")
    here.registry, here.imports = Registry("animal", ("home_of_animals_here",)), []
    monkeypatch.setitem(sys.modules, here.__name__, here)
    (tmp_path / "home_of_animals_here.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "home_of_animals_here", raising=False)
    assert repr(here.registry) == "Registry('animal', [])" and here.imports == []
    if first == "a look":
        assert here.registry.get("cat") is dict
    here.registry.register("dog", list)
    assert here.registry.get("cat") is dict and len(here.registry) == 2 and list(here.registry) == ["cat", "dog"]
    with pytest.raises(ConfigError, match="'cat' is already registered"):
        here.registry.register("cat", list)
    with pytest.raises(UnknownNameError, match="did you mean 'cat'"):
        here.registry.get("cart")
    assert here.imports == ["home_of_animals_here"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give a function that makes a registry with a home of this source, which knows it as `here.registry`."""
    here = types.ModuleType("test_home_here")
    monkeypatch.setitem(sys.modules, here.__name__, here)
    monkeypatch.syspath_prepend(tmp_path)

    def make(text):
        (tmp_path / "home_of_animals.py").write_text(f"import test_home_here as here\n{text}")
        here.registry = Registry("animal", ("home_of_animals",))
        return here

    yield make
    sys.modules.pop("home_of_animals", None)


def test_lookup_from_several_threads_waits_for_the_homes(home):
    class Asked(str):
        """A name that tells when it is looked up."""

        def __hash__(self):
            here.asked.set()
            return super().__hash__()

    here = home("here.begun.set()\nassert here.go.wait(30)\nhere.registry.register('cat', dict)\n")
    here.begun, here.asked, here.go = (threading.Event() for _ in range(3))
    found = []
    first = threading.Thread(target=lambda: found.append(here.registry.get("cat")))
    second = threading.Thread(target=lambda: found.append(here.registry.get(Asked("cat"))))
    first.start()
    assert here.begun.wait(30)
    second.start()
    assert here.asked.wait(30)
    here.go.set()
    first.join()
    second.join()
    assert found == [dict, dict]


def test_home_that_fails_once_is_imported_again(home):
    here = home("if not here.ready:\n    raise ImportError('first time')\nhere.registry.register('cat', dict)\n")
    here.ready = False
    for _ in range(2):
        with pytest.raises(ImportError, match="first time"):
            here.registry.get("cat")
    here.ready = True
    assert here.registry.get("cat") is dict and list(here.registry) == ["cat"]


def test_home_may_look_up_while_it_is_imported(home):
    here = home("here.registry.register('cat', dict)\nhere.seen = list(here.registry), 'dog' in here.registry\n")
    assert here.registry.get("cat") is dict and here.seen == (["cat"], False)


def test_registry_is_pickled_by_value():
    registry = Registry("animal")
    registry.register("cat", dict)
    assert pickle.loads(pickle.dumps(registry)).get("cat") is dict


def test_registry_repr(animals):
    assert repr(animals) == "Registry('animal', ['cat', 'camel'])"


def test_import_modules_runs_registrations(tmp_path, monkeypatch):
    for name in ("first", "second"):
        text = f"from vecenv.registry import ENV_REGISTRY\nENV_REGISTRY.register('toy_{name}', dict)\n"
        (tmp_path / f"module_{name}_here.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ENV_REGISTRY, "_entries", dict(ENV_REGISTRY._entries))
    assert import_modules(None) == []
    import_modules("module_first_here")
    import_modules(["module_second_here"])
    assert "toy_first" in ENV_REGISTRY
    assert "toy_second" in ENV_REGISTRY


def test_import_modules_lets_import_errors_through():
    with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
        import_modules(["no_such_module_here"])


@pytest.mark.parametrize("names", [5, [5], [None]], ids=repr)
def test_import_modules_refuses_values_that_are_not_names(names):
    with pytest.raises(ConfigError, match="^import_names: expected a list of names, got"):
        import_modules(names)
