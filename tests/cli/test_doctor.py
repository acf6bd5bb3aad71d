"""`vecenv doctor` prints lines about the machine, with the cost of missing parts, and starts a pool."""

from __future__ import annotations

import os
import resource

import pytest

from vecenv.cli import main


def test_report_ends_with_a_pool_that_runs(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok      vecenv ") and "two workers start, step and end" in lines[-1]


def test_missing_features_are_named_with_their_cost(capsys, monkeypatch):
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delattr(os, "pidfd_open")
    assert main(["doctor"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "note the C extension is missing: each step takes several times longer" in out
    assert "note a C compiler: the extension cannot be built" in out
    assert "note pidfd_open: the death of a worker is noticed through a pipe" in out


def test_machine_on_which_no_worker_runs_has_exit_code_1(capsys, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
    try:
        code = main(["doctor"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    out = capsys.readouterr().out
    assert code == 1 and "note    descriptors for 0 workers" in out and "FAILED  two workers do not run here" in out


@pytest.mark.parametrize("width", [60, 200])
def test_lines_fit_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setattr("vecenv.cli.doctor.width_of", lambda file: width)
    main(["doctor"])
    assert max(map(len, capsys.readouterr().out.splitlines())) < width
