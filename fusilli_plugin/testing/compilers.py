"""Compilers other than the one of this environment: an ``iree-compile`` program."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from graph_api import CompileError, FusilliError, Graph
from iree_bridge import Options, Target
from iree_bridge.compile.compiler import Recipe, emit, recipes_for

__all__ = ["Compiler"]

_LINES: Final = 12


class Compiler:
    """An ``iree-compile`` program. The IR is emitted here; its forms are tried in order, as our own compiles do.

    Args:
        path: the program; a folder means ``iree-compile`` in it.

    Raises:
        FusilliError: there is no such program, or it does not answer.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = Path(path).expanduser().absolute()
        self.path = given / "iree-compile" if given.is_dir() else given
        if not os.access(self.path, os.X_OK):
            raise FusilliError(f"{self.path} is no program; give the path of an iree-compile")

    def __str__(self) -> str:
        return str(self.path)

    @cached_property
    def version(self) -> str:
        """What it says of itself."""
        try:
            told = subprocess.run([self.path, "--version"], capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise FusilliError(f"{self.path} --version does not answer: {error}") from error
        return " ".join(told.stdout.split())

    def compile(self, graph: Graph, target: Target, options: Options) -> bytes:
        """The code of a graph.

        Raises:
            GraphError, NotSupportedError: the emitter declines it.
            CompileError: the program failed on all forms; what it said of the first.
        """
        failures: list[CompileError] = []
        for recipe in recipes_for(graph, target, options):
            ir = emit(graph, target, replace(options, failures=0), form=recipe.form).ir
            try:
                return self._run(ir, recipe, options.timeout)
            except CompileError as error:
                failures.append(error)
        raise failures[0]

    def _run(self, ir: str, recipe: Recipe, seconds: float) -> bytes:
        with tempfile.TemporaryDirectory(prefix="fusilli-compile-") as folder:
            source, made = Path(folder, "module.mlir"), Path(folder, "module.vmfb")
            source.write_text(ir, encoding="utf-8")
            command = [self.path, source, "-o", made, *recipe.all_flags]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
            except subprocess.TimeoutExpired:
                raise CompileError(f"{self.path} did not end within {seconds:g} s", kind="timeout") from None
            if done.returncode < 0:
                raise CompileError(f"{self.path} died of signal {-done.returncode}", kind="crash")
            if done.returncode:
                said = "\n".join(done.stderr.splitlines()[:_LINES])
                raise CompileError(f"{self.path} refuses the module: {said}", kind="refused")
            return made.read_bytes()
