"""The file of an env server: its keys, and errors that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from vecenv.errors import ConfigError
from vecenv.serving.catalog import CatalogEntry, read_catalog


def test_catalog_has_all_values_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sims.toml"
    file.write_text(
        """
        [carla]
        factory = "CartPole-v1"
        workers = 8
        envs_per_worker = 2
        kwargs = {max_episode_steps = 7}
        rebuild = "always"
        max_seconds = 60
        close_seconds = 2.5
        max = {collect = 6}
        reserve = {eval = 2}
        nice = {collect = 5}
        [pole]
        factory = "CartPole-v1"
        """
    )
    first, second = read_catalog(file)
    assert first == CatalogEntry(
        *("carla", "CartPole-v1", 8, 2, {"max_episode_steps": 7}, "always", 60, 2.5),
        *({"collect": 6}, {"eval": 2}, {"collect": 5}),
    )
    assert second == CatalogEntry("pole", "CartPole-v1")
    env = first.env_fn()()
    assert env.spec.max_episode_steps == 7
    env.close()


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "it has no env"),
        ("[env", "sims.toml: "),
        ("env = 3", "expected tables, got env = 3"),
        ("[env]\nworkers = 2", r"\[env\] lacks factory"),
        ("[env]\nfactory = 'x'\nworkrs = 2", "unknown key 'workrs'; did you mean workers"),
        ("[env]\nfactory = 3", r"\[env\] factory: expected a text, got 3"),
        ('[""]\nfactory = "x"', r"\[\] name: expected a text, got ''"),
        ("[env]\nfactory = 'x'\nworkers = 0", r"\[env\] workers"),
        ("[env]\nfactory = 'x'\nrebuild = 'often'", r"\[env\] rebuild"),
        ("[env]\nfactory = 'x'\nclose_seconds = 0", r"\[env\] close_seconds"),
        ("[env]\nfactory = 'x'\nmax = 3", r"\[env\] max: expected a table, got 3"),
        ("[env]\nfactory = 'x'\nnice = {a = 20}", r"\[env\] nice: expected numbers from 0 to 19"),
        ("[env]\nfactory = 'x'\nworkers = 2\nreserve = {a = 3}", "3 workers are reserved, and there are 2"),
    ],
)
def test_wrong_file_is_an_error_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "sims.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_catalog(file)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.toml"):
        read_catalog(tmp_path / "none.toml")


def test_file_that_is_no_utf8_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sims.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"sims\.toml: .*utf-8"):
        read_catalog(file)
