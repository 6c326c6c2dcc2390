"""What pyproject.toml cannot say: the plugin's library is built with the packages, and one wheel serves all Pythons.

The library is no extension module: it is not linked to a Python and its file name names none.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

HERE = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("_shim_build", HERE / "fusilli_plugin" / "build.py")
assert _spec is not None
assert _spec.loader is not None
_build: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_build)  # by its path: the packages' dependencies are not there while building


class BuildShim(build_ext):
    """Compiles the shim with the flags that a source tree uses as well."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        try:
            _build.compile_shim(Path(self.get_ext_fullpath(ext.name)))
        except _build.BuildError as error:
            # A wheel without its library is no wheel. In a source tree everything but the plugin works without it.
            if getattr(self, "editable_mode", False) or self.inplace:
                raise CompileError(str(error)) from error
            raise

    def copy_extensions_to_source(self) -> None:
        (HERE / "fusilli_plugin" / "lib").mkdir(exist_ok=True)  # no package, so nobody else makes it
        super().copy_extensions_to_source()


class PlatformWheel(bdist_wheel):
    """The wheel depends on the platform and on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


SHIM = "fusilli_plugin/shim"
setup(
    ext_modules=[
        Extension(
            "fusilli_plugin.lib.libfusilli_plugin",
            sources=[f"{SHIM}/{name}" for name in _build.SOURCES],
            depends=[f"{SHIM}/{name}" for name in _build.HEADERS],
            optional=True,  # a CompileError is a warning then
        )
    ],
    cmdclass={"build_ext": BuildShim, "bdist_wheel": PlatformWheel},
)
