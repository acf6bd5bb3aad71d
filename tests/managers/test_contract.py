"""Every manager fulfils the contract."""

from __future__ import annotations

import pytest

from tests.contracts.manager_contract import ManagerContract
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)


class TestBase(ManagerContract):
    manager_cls = BaseEnvManager
    in_process = True
    step_error = RuntimeError
    closes_on_step_error = False


class TestBaseV2(TestBase):
    manager_cls = BaseEnvManagerV2


class TestSync(ManagerContract):
    manager_cls = SyncSubprocessEnvManager
    cfg = {"num_workers": 2}


class TestV2(TestSync):
    manager_cls = SubprocessEnvManagerV2


class TestAsync(TestSync):
    manager_cls = AsyncSubprocessEnvManager
    # A step waits for all envs, so that tests can expect their timesteps.
    cfg = {"num_workers": 2, "wait_num": 100, "step_wait_timeout": None}


class _Twin:
    """The same without the C extension."""

    @pytest.fixture(autouse=True)
    def _twin(self, monkeypatch):
        monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")


class TestBaseV2OfTheTwin(_Twin, TestBaseV2):
    pass


class TestSyncOfTheTwin(_Twin, TestSync):
    pass


class TestSyncInThreads(TestSync):
    cfg = {**TestSync.cfg, "num_workers": 1, "threads_per_worker": 3}


@pytest.mark.slow
class TestAsyncOfTheTwin(_Twin, TestAsync):
    pass


@pytest.mark.slow
class TestAsyncInThreads(TestAsync):
    cfg = {**TestAsync.cfg, "num_workers": 1, "threads_per_worker": 3}
