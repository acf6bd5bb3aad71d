"""Docstrings and comments are plain English: few sentences of a kind that readers have to decode.

The count is a floor, not a goal. It finds clauses that stand where a noun belongs ("what came last is kept"), verbs
of speech for data ("the row says"), and words that are rare in technical English.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Folder -> most findings per 1,000 words: of the folder, and of each of its files.
MOST = {"vecenv": (2.0, 6.0), "native": (2.0, 6.0), "benchmarks": (2.0, 6.0), "tests": (2.0, 6.0)}

NOUN_CLAUSE = re.compile(
    r"\b(?:what|who|whoever|whatever)\s+"
    r"(?:(?:is|are|was|were|it|they|the|an?|no|one|this|that|cannot|can|could|must|may|did|came|comes?|stands?|goes|"
    r"gave|gives?|do|ask|follow|lie|take|wait|read|write|look|want|need|run)\b|\w+(?:ed|s)\b)",
    re.IGNORECASE,
)
SPEECH_OF_DATA = re.compile(r"\b(?:is|are|be|been) told\b|\bhears? of\b|\bheard of\b|\bgoodbye\b", re.IGNORECASE)
RARE_WORDS = re.compile(
    r"\b(?:amid|anew|for good|nobody|somebody|is to be|are to be|as inside|mends?|mended|bury|buried|outcast|strike)\b",
    re.IGNORECASE,
)


#: Counts without a noun: a reader has to search for the thing that is counted.
NO_NOUN = re.compile(r"\bso many\b", re.IGNORECASE)


def prose_of_python(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")


def prose_of_c(source: str) -> Iterator[str]:
    for comment in re.findall(r"/\*.*?\*/|//[^\n]*", source, re.DOTALL):
        yield re.sub(r"\n *\* ?", "\n", comment).strip("/* ")


def text_of(path: Path) -> str:
    """Return the docstrings and comments of a file."""
    prose = prose_of_python if path.suffix == ".py" else prose_of_c
    return "\n".join(prose(path.read_text(encoding="utf-8")))


def count(path: Path) -> tuple[int, int]:
    """Return the numbers of hard sentences and of words in the docstrings and comments of a file."""
    text = text_of(path)
    found = sum(len(pattern.findall(text)) for pattern in (NOUN_CLAUSE, SPEECH_OF_DATA, RARE_WORDS))
    return found, len(re.findall(r"[A-Za-z']+", text))


def files_of(folder: str) -> list[Path]:
    paths = [path for pattern in ("*.py", "*.c", "*.h") for path in (ROOT / folder).rglob(pattern)]
    return [path for path in paths if path != Path(__file__)]


def counts_of(folder: str) -> dict[str, tuple[int, int]]:
    return {str(path.relative_to(ROOT)): count(path) for path in files_of(folder)}


@pytest.mark.extended
@pytest.mark.parametrize("folder", MOST)
def test_prose_has_few_hard_sentences(folder: str) -> None:
    counts = counts_of(folder)
    found, words = (sum(column) for column in zip(*counts.values()))
    most, most_of_a_file = MOST[folder]
    assert 1000 * found / words < most
    rates = {file: 1000 * found / words for file, (found, words) in counts.items() if words}
    assert most_of_a_file is None or {file: rate for file, rate in rates.items() if rate > most_of_a_file} == {}


@pytest.mark.parametrize("folder", ["vecenv", "native"])
def test_counts_name_the_things_that_are_counted(folder: str) -> None:
    assert [str(path) for path in files_of(folder) if NO_NOUN.search(text_of(path))] == []


def test_prose_count_finds_clauses_in_the_place_of_nouns() -> None:
    assert NOUN_CLAUSE.search("What was shown last is kept.")
    assert NOUN_CLAUSE.search("Return what the caller gave.")
    assert not NOUN_CLAUSE.search("Errors name the worker and what to change.")
