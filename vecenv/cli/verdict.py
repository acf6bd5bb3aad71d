"""The last sentences of a benchmark: the fastest way to step the envs, and when to use Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenv.core.advice.facts import SettingNames
from vecenv.core.advice.rules import UNPROTECTED, cheap_envs
from vecenv.core.advice.sizing import Setting
from vecenv.core.advice.waiting import LEAST_GAIN
from vecenv.measurement.measure import Result

__all__ = ["ray_rule", "verdict"]

# Ratios closer to 1 than this change from run to run.
_NOISE = 0.03
#: Milliseconds of a round from which lockstep over Ray has nearly the speed of the workers.
_LONG_ROUND_MS = 10.0
_NAMES = {
    "plain loop": "the plain loop",
    "gymnasium async": "Gymnasium's AsyncVectorEnv",
    "vecenv serial": "vecenv serial",
    "vecenv sync": "vecenv sync",
    "vecenv async": "vecenv async",
    "vecenv ray": "vecenv over Ray",
}


def verdict(results: Sequence[Result], settings: dict[str, Any]) -> str:
    """Return which setting is fastest, and by how much over the plain loop and Gymnasium's `AsyncVectorEnv`.

    The ceiling is left out: it is a limit, not a setting. "" is returned if no mode was measured that could be chosen.
    """
    choices = [result for result in results if result.name in _NAMES and result.steps_per_second]
    if not choices:
        return ""
    best = max(choices, key=lambda result: result.steps_per_second)
    ours = [result for result in choices if result.name.startswith("vecenv")]
    speed = f"{best.steps_per_second:,.0f} env steps per second"
    if best in ours:
        comparisons = [
            _compare(ratio, _NAMES[name])
            for name, ratio in (("gymnasium async", best.ratio_to_gymnasium), ("plain loop", best.ratio_to_plain))
            if ratio is not None
        ]
        parts = [f"The fastest setting is {_call(best, settings)}: {speed}", " and ".join(comparisons)]
        return ", ".join(filter(None, parts)) + "."
    behind = max(ours, key=lambda result: result.steps_per_second, default=None)
    margin = ""
    if behind is not None:
        margin = ", " + _compare(best.steps_per_second / behind.steps_per_second, behind.name)
    if best.name == "plain loop":
        return f"The plain loop is fastest: {speed}{margin}{_explain(best, behind, settings)}."
    return f"{_NAMES[best.name]} is fastest: {speed}{margin}."


def _explain(plain: Result, vecenv: Result | None, settings: dict[str, Any]) -> str:
    """Return the cause and the setting that `envs.report()` would name, if the plain loop is clearly faster."""
    is_serial = vecenv is None or vecenv.name == "vecenv serial"
    if vecenv is None or is_serial or plain.steps_per_second < LEAST_GAIN * vecenv.steps_per_second:
        return ""
    found = cheap_envs(
        settings["envs"],
        1 / plain.steps_per_second,
        1 / vecenv.steps_per_second,
        str(Setting(settings["workers"])),
        (plain.steps_per_second / vecenv.steps_per_second,) * 2,
        SettingNames().serial + UNPROTECTED,
    )
    return f": {found.cause}. Use {found.setting}"


def _call(result: Result, settings: dict[str, Any]) -> str:
    """Return a mode of vecenv with the setting to write in a program."""
    if result.name == "vecenv ray":
        return "vecenv over Ray with backend='ray' and step()"
    if result.name == "vecenv serial":
        return f"vecenv serial with {SettingNames().serial}{UNPROTECTED}, and step()"
    workers = f"num_workers={settings['workers']}"
    if result.name == "vecenv async":
        return f"vecenv async with {workers}, send() and recv({settings['wait_num']})"
    return f"vecenv sync with {workers} and step()"


def _compare(ratio: float, name: str) -> str:
    if abs(ratio - 1) < _NOISE:
        return f"about as fast as {name}"
    return f"{ratio:.1f} x {name}" if ratio >= 2 else f"{ratio:.2f} x {name}"


def ray_rule(results: Sequence[Result], settings: dict[str, Any]) -> str:
    """Return what Ray adds to a round here, and when to use it, with the settings of the run.

    "" is returned unless both the process pool and the pool over Ray were measured.
    """
    rounds = {result.name: result.us_per_batch / 1000 for result in results}
    if not {"vecenv sync", "vecenv ray"} <= rounds.keys():
        return ""
    local, ray = rounds["vecenv sync"], rounds["vecenv ray"]
    ideal = local * settings["workers"] / settings["ray_workers"]  # a round with that number of local workers
    added = max(ray - ideal, 0.0)
    shards = "1 shard" if settings["ray_shards"] == 1 else f"{settings['ray_shards']} shards"
    length = "longer" if local >= _LONG_ROUND_MS else "shorter"
    return (
        f"A round of {settings['envs']} envs took {local:.3g} ms with the process pool ({settings['workers']} workers) "
        f"and {ray:.3g} ms over Ray ({shards}, {settings['ray_workers']} workers): Ray adds about {added:.2g} ms, so "
        f"lockstep over Ray reaches w / (w + {added:.2g} ms) of the speed of its workers, where they need w ms for a "
        f"round. Use backend='ray' for rounds above {_LONG_ROUND_MS:g} ms (this one is {length}) or with one central "
        "policy, and collectors with where='shards' for shorter rounds, and always for pixels."
    )
