"""The rule for `backend="ray"`: which rounds are long enough for it, with the numbers of a run of `vecenv bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.measurement.measure import Result

__all__ = ["ray_rule"]

#: Milliseconds of a round from which lockstep over Ray has nearly the speed of the workers.
_LONG_ROUND_MS = 10.0


def ray_rule(results: Sequence[Result], settings: dict[str, Any]) -> str:
    """Return what Ray adds to a round here, and when to use it, with the settings of the run.

    "" is returned unless both the process pool and the pool over Ray were measured.
    """
    rounds = {result.name: result.us_per_batch / 1000 for result in results}
    if not {"vecenv sync", "vecenv ray"} <= rounds.keys():
        return ""
    local, ray = rounds["vecenv sync"], rounds["vecenv ray"]
    # as many local workers would take so long
    ideal = local * settings["workers"] / settings["ray_workers"]
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
