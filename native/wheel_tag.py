"""Build of a wheel: without a compiler, the wheel has the tag of pure Python, `py3-none-any`.

The extension is optional, so a failed compiler does not end a build. The wheel then runs on any system, and must
not have the tag of the system on which it was built.
"""

from __future__ import annotations

import os

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

__all__ = ["BdistWheel", "BuildExt"]


class BuildExt(build_ext):
    """Builds the extension, or writes the consequence of a failure to the log of the build."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:  # setuptools logs it and continues
            self.warn(
                "vecenv is installed without its C extension, so each step takes several times longer; install a C "
                "compiler, then vecenv again (`vecenv doctor` prints the command)"
            )
            raise


class BdistWheel(bdist_wheel):
    """Builds the extension first, and a pure wheel if that has failed."""

    def run(self) -> None:
        self.run_command("build_ext")
        built = self.get_finalized_command("build_ext").get_outputs()
        if not any(os.path.exists(path) for path in built):
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()
