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


#: First words of a comment that leave its subject out, as in "of rows" or "that were killed" ...
OPENERS = "of|that|which|whose|who|what|those|as|with|by|from|to|until|for|at|in|if|or|and|so|not|only"
#: ... unless a subject follows, as in "if the pool is closed, it raises" or "by env_id: the newest row".
SUBJECT = rf"[^,:;]*(?:, (?!(?:{OPENERS}|too|else|but|where|when|while|without)\b)\w+ \w+|: \w)"
NO_SUBJECT = re.compile(rf"(?:{OPENERS})\b(?! example\b)(?!{SUBJECT})")
#: Patterns of texts for which a reader has to search the noun, or to know a private meaning -> most findings in all
#: docstrings and comments of `vecenv` and `native`.
MOST_OF_PATTERN = {
    r"\bso many\b": 0,
    r"(?<!times )\bas many\b": 2,
    r"\bdo(?:es)? the same\b": 1,
    r"\bthe rest\b": 2,
    r"\bmeanwhile\b": 3,
    r"(?<!in )(?<!takes )(?<!their )(?<!its )\bplaces?\b(?! (?:of|together|both|the)\b)(?!:)": 13,
    r"\bmails?\b": 1,
    r"\bnews\b": 0,
    r"\b(?:a|the|its|their|by|own|one|each|this|next|last) turns?\b": 2,
    r"\bledgers?\b": 0,
    r"\bpatience\b": 0,
    r"\bfillers?\b": 0,
    r"\bstrangers?\b": 0,
    r"\b(?:go|goes|going|went) on\b": 2,
    r"\b(?:give|gives|giving|given|gave) up\b": 1,
    r"\bfaces?\b": 1,
}
#: Most comments whose first words leave the subject out.
MOST_WITHOUT_SUBJECT = 24


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


def comments_of(path: Path) -> Iterator[str]:
    """Yield the first line of each comment."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        last = 0  # line of the comment before
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                if token.start[0] != last + 1 or not token.line.strip().startswith("#"):
                    yield token.string.lstrip("#: ")
                last = token.start[0]
    else:
        yield from prose_of_c(source)


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


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    paths = [*files_of("vecenv"), *files_of("native")]
    return {str(path.relative_to(ROOT)): text_of(path) for path in paths}


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


@pytest.mark.parametrize("pattern", MOST_OF_PATTERN)
def test_words_name_the_things_that_they_mean(pattern: str, texts: dict[str, str]) -> None:
    found = [
        f"{file}: {match[0]}" for file, text in texts.items() for match in re.finditer(pattern, text, re.IGNORECASE)
    ]
    assert len(found) <= MOST_OF_PATTERN[pattern], "\n".join(found)


def test_comments_begin_with_their_subject() -> None:
    paths = [*files_of("vecenv"), *files_of("native")]
    found = [f"{path.name}: {comment}" for path in paths for comment in comments_of(path) if NO_SUBJECT.match(comment)]
    assert len(found) <= MOST_WITHOUT_SUBJECT, "\n".join(found)


@pytest.mark.parametrize(
    "comment", ["of rows", "that were killed", "if there are any", "as in `send`", "of the last one, if there is one"]
)
def test_comment_without_its_subject_is_found(comment: str) -> None:
    assert NO_SUBJECT.match(comment)


@pytest.mark.parametrize(
    "comment",
    [
        "If the pool is closed, nothing is sent.",
        "with spare envs, the reset is done already",
        "by env_id: the newest row",
        "the envs of a slot",
        "Only the last row is kept.",
        "for example, too few descriptors",
    ],
)
def test_comment_with_a_subject_is_not_found(comment: str) -> None:
    assert not NO_SUBJECT.match(comment)


def test_prose_count_finds_clauses_in_the_place_of_nouns() -> None:
    assert NOUN_CLAUSE.search("What was shown last is kept.")
    assert NOUN_CLAUSE.search("Return what the caller gave.")
    assert not NOUN_CLAUSE.search("Errors name the worker and what to change.")
