"""DI-engine: vecenv's managers under names of their own in DI-engine's registry.

    create_config = dict(
        env_manager=dict(type="vecenv_subprocess", import_names=["vecenv.integrations.ding"]),
        ...,
    )

The import of this module registers them, and DI-engine imports the modules of `import_names`. Then `compile_config`
reads the defaults of the manager's config, and `create_env_manager` builds the manager.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..errors import require
from ..managers import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    GymVectorEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)

__all__ = ["MANAGERS", "TreetensorEnvManager", "TreetensorSubprocessEnvManager"]


class TreetensorEnvManager(BaseEnvManagerV2):
    """`BaseEnvManagerV2` with trees of DI-treetensor, which DI-engine's middleware expects."""

    config: ClassVar[dict[str, Any]] = {**BaseEnvManagerV2.config, "trees": "treetensor"}


class TreetensorSubprocessEnvManager(SubprocessEnvManagerV2):
    """`SubprocessEnvManagerV2` with trees of DI-treetensor, which DI-engine's middleware expects."""

    config: ClassVar[dict[str, Any]] = {**SubprocessEnvManagerV2.config, "trees": "treetensor"}


#: The registered managers by their names, which are DI-engine's own names after "vecenv_".
MANAGERS: dict[str, type] = {
    "vecenv_base": BaseEnvManager,
    "vecenv_subprocess": SyncSubprocessEnvManager,
    "vecenv_async_subprocess": AsyncSubprocessEnvManager,
    "vecenv_base_v2": TreetensorEnvManager,
    "vecenv_subprocess_v2": TreetensorSubprocessEnvManager,
    "vecenv_gym_vector": GymVectorEnvManager,
}

_registry: Any = require("ding.utils", "ding").ENV_MANAGER_REGISTRY
for _name, _manager in MANAGERS.items():
    _registry.register(_name, _manager, force_overwrite=True)  # a reload of this module registers them again
