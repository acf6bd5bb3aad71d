"""Programs that end without having closed their pools, in ways that `multiprocessing` and threads take part in."""

from __future__ import annotations

from pathlib import Path

import pytest

from .programs import assert_gone, program, run


@pytest.mark.parametrize("where", ["after a finalizer", "in a child"])
def test_pools_end_before_multiprocessing_waits_for_their_workers(where: str, tmp_path: Path) -> None:
    if where == "in a child":
        body = """
        import multiprocessing
        def use():
            global pool
            pool = start()
            print(*pool.worker_pids, flush=True)
        child = multiprocessing.get_context("fork").Process(target=use)
        child.start()
        child.join()
        assert child.exitcode == 0
        """
    else:
        body = """
        pool = start()
        print(*pool.worker_pids)
        """
    # A finalizer that is older than `multiprocessing` has those of pools run after `multiprocessing` has waited.
    source = "import weakref\nweakref.finalize(weakref.finalize, int)\n" + program(body)
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert_gone([int(pid) for pid in done.stdout.split()])
