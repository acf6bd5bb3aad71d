"""The reasons for which tests are skipped, and the job that runs these tests.

`conftest.py` fails a run that skips a test for a reason that is not listed. In a job (`VECENV_TEST_JOB`) it also fails
if the job skips a test that it must run.
"""

from __future__ import annotations

import re

#: The job that runs a test, by a pattern of the reason for which other runs skip it. 'whole suite' is a part of
#: `.ci/run`, with the C extension, all extras and the newest Gymnasium. 'clients' is `.ci/clients`, with frameworks
#: that the extra `all` leaves out; 'ray' is `.ci/ray`. 'by hand': the test needs a display, or measures frameworks.
#: 'never': the parameters make no test.
JOBS: dict[str, str] = {
    # tests/cli/test_peers.py: minutes for all frameworks together
    r"could not import '(ding|envpool|pufferlib|ray|tianshou|torchrl)'$": "by hand",
    r"EnvPool has no such env": "by hand",
    r"could not import 'ray'": "ray",
    r"could not import '(array_api_compat|jax|mo_gymnasium|mpe2|supersuit)": "clients",
    r"could not import '(torch\.utils\.tensorboard|treetensor)": "clients",
    r"could not import '(envpool|gym'|ray\.|(vecenv\.integrations\.)?(ding|pufferlib|tianshou|torchrl))": "clients",
    r"could not import '(vecenv\.integrations\.)?(rl_games|xuance)": "clients",
    r"rendering MuJoCo takes a display or EGL": "by hand",
    r"(the program has one thread|their first episode is random)": "never",
    r"could not import '": "whole suite",
    r"needs (ale-py|mujoco|setpriv)": "whole suite",
    r"the extension was not built": "whole suite",
    r"there is nothing to compare with": "whole suite",
    r"blocks are lent by the extension only": "whole suite",
    r"recovery needs the extension": "whole suite",
    r"(there is no C compiler|the compiler does not support)": "whole suite",
    r"there is one core": "whole suite",
    r"the system gives no (mounts of one's own|seccomp filters)": "whole suite",
    r"there is a core for each thread": "whole suite",
    r"there is CUDA": "whole suite",
    r"(newer than|other wrappers|release of Gymnasium|an earlier AsyncVectorEnv)": "whole suite",
}


def job_of(reason: str) -> str | None:
    """Return the job that runs a test which is skipped for this reason; None: there is none, or it is unknown."""
    return next((job for pattern, job in JOBS.items() if re.search(pattern, reason)), None)
