"""What pyproject.toml cannot say: the libraries in C are built with the packages, and one wheel serves all Pythons.

They are no extension modules: they are not linked to a Python and their file names name none.
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


def _edge(name: str) -> Any:
    """A file of `fusilli_plugin/edge`, by its path: the packages' dependencies are not there while building."""
    spec = importlib.util.spec_from_file_location(f"_edge_{name}", HERE / "fusilli_plugin" / "edge" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_build, _platform_tag = _edge("build"), _edge("platform_tag")

SHIM = "fusilli_plugin/shim"
CORE = "fusilli_plugin/emulator/core"
LAUNCHER = "iree_bridge/runtime/host/launcher.c"
MAKERS = {
    "fusilli_plugin.lib.libfusilli_plugin": _build.compile_shim,
    "iree_bridge.runtime.host.lib.libfusilli_launcher": _build.compile_launcher,
    "fusilli_plugin.emulator.lib.libgfx_emulator": _build.compile_core,
}


class BuildLibraries(build_ext):
    """Compiles the libraries with the flags that a source tree uses as well."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        try:
            MAKERS[ext.name](Path(self.get_ext_fullpath(ext.name)))
        except _build.BuildError as error:
            # A wheel without its libraries is no wheel. In a source tree everything but the plugin and the emulator
            # works without them.
            if getattr(self, "editable_mode", False) or self.inplace:
                raise CompileError(str(error)) from error
            raise

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:  # the folders are no packages, so nobody else makes them
            (HERE / self.get_ext_filename(ext.name)).parent.mkdir(exist_ok=True)
        super().copy_extensions_to_source()


class PlatformWheel(bdist_wheel):
    """The wheel depends on the platform and on no version of Python; its libraries say which glibc they take."""

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()[2]
        if tag == "linux_x86_64" and not self.plat_name_supplied:
            built = map(Path, self.get_finalized_command("build_ext").get_outputs())
            tag = _platform_tag.platform_tag([path for path in built if path.is_file()], tag)
        return "py3", "none", tag

    def write_wheelfile(self, *args: Any, **kwargs: Any) -> None:
        super().write_wheelfile(*args, **kwargs)
        # Packed next. Modes are whatever the builder's umask and checkout are; a wheel of one source has one form.
        assert self.bdist_dir is not None
        for path in Path(self.bdist_dir).rglob("*"):
            if path.is_file():
                path.chmod(0o755 if path.suffix == ".so" else 0o644)


setup(
    ext_modules=[
        Extension(
            "fusilli_plugin.lib.libfusilli_plugin",
            sources=[f"{SHIM}/{name}" for name in _build.SOURCES],
            depends=[f"{SHIM}/{name}" for name in _build.HEADERS],
            optional=True,  # a CompileError is a warning then
        ),
        Extension("iree_bridge.runtime.host.lib.libfusilli_launcher", sources=[LAUNCHER], optional=True),
        Extension(
            "fusilli_plugin.emulator.lib.libgfx_emulator",
            sources=[f"{CORE}/core.c"],
            depends=sorted(str(path.relative_to(HERE)) for path in (HERE / CORE).iterdir()),
            optional=True,
        ),
    ],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
)
