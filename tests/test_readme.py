"""README, pages in `docs/` and docstrings: examples run, named files exist, the quick start is two commands."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import vecenv
from tests.programs import run_python
from vecenv.ding import ShmBuffer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}


class Block(NamedTuple):
    section: str
    language: str
    text: str


def _blocks(page: str) -> list[Block]:
    blocks = []
    for section in re.split(r"^##? ", page, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL):
            blocks.append(Block(title, language, text))
    return blocks


BLOCKS = _blocks(README)
# multiprocessing keeps the memory that it has once mapped, with its descriptors: from here on, not from a test on.
KEPT = ShmBuffer(np.uint8, (1,))
#: Modules that an example imports -> the library that is needed.
LIBRARIES = {
    "ale_py": "ale_py",
    "mujoco": "mujoco",
    "stable_baselines3": "stable_baselines3",
    "torch": "torch",
    "prometheus": "prometheus_client",
    "pufferlib": "pufferlib",
    "ray": "ray.rllib",
    "rl_games": "rl_games",
    "tianshou": "tianshou",
    "torchrl": "torchrl",
    "pettingzoo": "pettingzoo",
    "xuance": "xuance",
}
EXAMPLES = [block for block in BLOCKS if block.language == "python"]
EXAMPLES_OF_PAGES = {
    name: examples
    for name, page in PAGES.items()
    if name != "ray.md"  # its examples need a cluster: tests/integrations/ray runs it
    and (examples := [block.text for block in _blocks(page) if block.language == "python"])
}


def test_quick_start_is_two_commands_that_set_up_all_they_need():
    commands = [block.text for block in BLOCKS if block.section == "Quick start"]
    assert len(commands) == 2
    for command in commands:
        assert command.count("\n") == 1, "one line"
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e ")
    assert commands[0].endswith("-m vecenv bench\n")
    assert commands[1].endswith("-m pytest -n 2\n")


@pytest.mark.parametrize("example", [block.text for block in EXAMPLES], ids=[block.section for block in EXAMPLES])
def test_example_runs(example: str, tmp_path: Path):
    _run_example(example, tmp_path)


@pytest.mark.parametrize("examples", EXAMPLES_OF_PAGES.values(), ids=EXAMPLES_OF_PAGES)
def test_examples_of_page_run(examples: list[str], tmp_path: Path):
    """`.ci/clients` runs those of frameworks that pin other releases."""
    for example in examples:
        _run_example(example, tmp_path)


def _run_example(example: str, tmp_path: Path) -> None:
    """As a script without a main guard, in a directory of its own, with every warning an error."""
    for module, library in LIBRARIES.items():
        if re.search(rf"\b{module}[.\w]* import|^import {module}\b", example, flags=re.MULTILINE):
            pytest.importorskip(library, exc_type=ImportError)
    script = tmp_path / "example.py"
    script.write_text(example)
    # rl_games imports parts of torch that are deprecated.
    ignored = ("-W", "ignore::DeprecationWarning") if "rl_games" in example else ()
    done = run_python("-W", "error", *ignored, str(script), cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "SIGKILL" not in example or "nothing was lost" not in line]
    said = [line for line in said if "envs are built after" not in line]  # on a busy machine
    assert said == []


def test_example_exists():
    assert len(EXAMPLES) >= 1
    assert len(EXAMPLES_OF_PAGES) >= 1


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *(f"docs/{name}" for name in PAGES)])
def test_files_named_in_page_exist(name: str):
    page = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:vecenv|native|tests|benchmarks|docs)/[\w./-]*)`", page)
    linked = [(ROOT / name).parent / link for link in re.findall(r"\]\((?!http)([\w./-]+)", page)]
    assert [path for path in [*(ROOT / path for path in named), *linked] if not path.exists()] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *(f"docs/{name}" for name in PAGES)])
def test_sections_of_linked_files_exist(name: str):
    links = re.findall(r"\]\((?!http)([\w./-]*)#([\w-]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    pages = [(ROOT / name).parent / path if path else ROOT / name for path, _ in links]
    assert [link for link, page in zip(links, pages) if link[1] not in _anchors(page.read_text(encoding="utf-8"))] == []


def _anchors(page: str) -> list[str]:
    """Return the names by which links find the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


def test_readme_is_short():
    """A visitor reads it in two minutes; the pages have the rest."""
    assert len(README.splitlines()) <= 150


def test_readme_links_every_page():
    assert [name for name in PAGES if f"](docs/{name})" not in README] == []


def _modules_with_examples() -> list[str]:
    package = Path(vecenv.__path__[0])  # this may be an installed package
    files = [file.relative_to(package.parent) for file in package.rglob("*.py") if ">>> " in file.read_text("utf-8")]
    return sorted(".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files)


@pytest.mark.parametrize("name", _modules_with_examples())
def test_docstring_examples_run(name: str):
    if name.endswith(".board.library"):
        pytest.importorskip("pettingzoo")
    if name.endswith((".joint", ".turns", ".pettingzoo", ".sb3_agents")):
        pytest.importorskip("pettingzoo.classic.rps.rps", exc_type=ImportError)
    if name.endswith(".rllib"):
        pytest.importorskip("ray.rllib", exc_type=ImportError)
    done = doctest.testmod(pytest.importorskip(name, exc_type=ImportError))
    assert done.attempted and not done.failed
