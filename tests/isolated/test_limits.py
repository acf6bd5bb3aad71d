"""Programs where the system gives too little: shared memory, descriptors, names; leftovers after a kill."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .programs import program, run


@pytest.mark.extended
def test_dev_shm_too_small_is_refused_before_anything_starts(tmp_path: Path) -> None:
    source = program(
        """
        from gymnasium import spaces
        from vecenv.errors import ConfigError
        class Huge(toys.NullEnv):
            def __init__(self):
                super().__init__(None)
                self.observation_space = spaces.MultiBinary(1 << 34)
        try:
            start(Huge)
        except ConfigError as error:
            print(error)
        """
    )
    done = run(source, tmp_path)
    assert done.returncode == 0 and "MiB" in done.stdout and "--shm-size" in done.stdout, done.stderr


@pytest.mark.extended
def test_dev_shm_with_room_for_copies_only_gets_copies(tmp_path: Path) -> None:
    """Blocks that could be lent instead are the first thing to go without."""
    source = textwrap.dedent(
        """
        import gymnasium, numpy, os, vecenv
        from vecenv.envs.toys import SpaceEnv
        frames = lambda: SpaceEnv(gymnasium.spaces.Box(0, 255, (1 << 18,), numpy.uint8))
        envs = vecenv.VectorEnv([frames] * 4)
        obs, _ = envs.reset(seed=1)
        print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_bsize >> 20, obs.flags.owndata)
        envs.close()
        """
    )
    (tmp_path / "script.py").write_text(source)
    for size, is_copy in (("14m", True), ("32m", False)):
        done = run_with_mount(f"size={size}", tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split() == [size[:-1], str(is_copy)]


def run_with_mount(options: str, folder: Path, place: str = "/dev/shm") -> subprocess.CompletedProcess[str]:
    """Run the folder's script.py with an empty file system of its own mounted at `place` with these options."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*namespace, f"mount -t tmpfs tmpfs {place}"], capture_output=True).returncode != 0:
        pytest.skip("the system gives no mounts of one's own")
    inside = f'mount -t tmpfs -o "$0" tmpfs {place} && exec {sys.executable} -W error script.py'
    return subprocess.run([*namespace, inside, options], capture_output=True, text=True, timeout=60, cwd=folder)


@pytest.mark.extended
def test_machine_without_proc_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = textwrap.dedent(
        """
        from vecenv import ConfigError, VectorEnv
        from vecenv.envs.toys import NullEnv
        try:
            VectorEnv([NullEnv])
        except ConfigError as error:
            print(error)
        """
    )
    (tmp_path / "script.py").write_text(source)
    done = run_with_mount("size=1m", tmp_path, "/proc")
    assert done.stdout == "/proc is not mounted, and workers need it; mount it, or use backend='serial'\n", done.stderr


def test_doctor_names_a_missing_proc(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys, vecenv.cli; sys.exit(vecenv.cli.main(['doctor']))")
    done = run_with_mount("size=1m", tmp_path, "/proc")
    out = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (1, "")
    assert "note /proc is missing: no pool with workers can be made" in out
    assert "FAILED two workers do not run here: /proc is not mounted, and workers need it; mount it" in out


@pytest.mark.extended
def test_shortage_of_one_page_shows_in_the_numbers(tmp_path: Path) -> None:
    """The error said that 1 MiB was needed and 1 MiB was free."""
    source = textwrap.dedent(
        """
        from vecenv import ConfigError
        from vecenv.core.system.segment import Segment
        try:
            Segment.create((1 << 20) + 4096)
        except ConfigError as error:
            print(error)
        """
    )
    (tmp_path / "script.py").write_text(source)
    done = run_with_mount("size=1m", tmp_path)
    assert "need 1.1 MiB of shared memory, 1.0 MiB are free." in done.stdout, done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("options, why", [("ro", "Read-only file system"), ("nr_inodes=1", "No space left on device")])
def test_dev_shm_that_is_not_writable_is_an_error_that_names_it(tmp_path: Path, options: str, why: str) -> None:
    source = program(
        """
        from vecenv.errors import ConfigError
        try:
            start()
        except ConfigError as error:
            print(error)
        """
    )
    (tmp_path / "script.py").write_text(source)
    done = run_with_mount(options, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"/dev/shm: no shared memory can be made there: {why}")


def test_temporary_folder_with_a_name_too_long_for_a_socket_is_no_limit(tmp_path: Path, start_method: str) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    source = program(
        f"""
        import tempfile
        tempfile.tempdir = {str(folder)!r}
        start(context={start_method!r}).close()
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.extended
def test_descriptor_limit_too_low_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    source = program(
        """
        import resource, psutil
        from vecenv.errors import ConfigError
        start().close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        before = psutil.Process().num_fds()
        try:
            start(num_envs=64, num_workers=64)
        except ConfigError as error:
            print(error)
        assert psutil.Process().num_fds() == before
        """
    )
    done = run(source, tmp_path)
    assert done.returncode == 0 and "ulimit -n" in done.stdout, done.stderr


@pytest.mark.extended
def test_descriptors_that_run_out_at_any_point_of_a_start_leave_nothing(start_method: str, tmp_path: Path) -> None:
    source = program(
        f"""
        import resource, psutil
        from vecenv.errors import ConfigError
        start(context="{start_method}").close()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = psutil.Process().num_fds()
        for spare in range(12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, limits[1]))
            try:
                start(context="{start_method}")
            except ConfigError:
                pass
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert psutil.Process().num_fds() == before, spare
        start(context="{start_method}").close()
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.extended
def test_shared_memory_has_no_name_while_the_tracker_of_names_is_started(tmp_path: Path) -> None:
    """Starting the tracker took long enough for a kill, which left the name in /dev/shm."""
    source = program(
        """
        import multiprocessing.util as util
        spawn, seen = util.spawnv_passfds, []
        def look(*args):
            seen.append([name for name in os.listdir("/dev/shm") if name.startswith(f"vecenv-{os.getpid()}-")])
            return spawn(*args)
        util.spawnv_passfds = look
        start(context="fork").close()
        print(seen)
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[]]\n", "")


@pytest.mark.extended
def test_file_size_limit_too_low_is_named(tmp_path: Path) -> None:
    source = program(
        """
        import resource
        from vecenv.errors import ConfigError
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        try:
            start()
        except ConfigError as error:
            print(error)
        """
    )
    done = run(source, tmp_path)
    assert done.returncode == 0 and "ulimit -f" in done.stdout, (done.stdout, done.stderr)


@pytest.mark.extended
def test_workers_start_where_libraries_have_much_memory_per_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This memory is part of each thread's stack: the watcher's stack was once too small, and no worker started."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=2000000")
    done = run(program("start().close()"), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
