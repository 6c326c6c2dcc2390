"""The small plugin of tests/hipdnn_backend under the name of any engine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["compile_tiny_plugin"]

_SOURCE = Path(__file__).resolve().parents[1] / "hipdnn_backend" / "plugin" / "tiny_plugin.c"


def compile_tiny_plugin(path: Path, engine: str) -> Path:
    """Compile it to ``path``; skips the test where no C compiler is."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the other plugin is compiled with cc, which is not here")
    source = path.with_suffix(".c")
    source.write_text(_SOURCE.read_text().replace('"TINY_ENGINE"', f'"{engine}"'))
    command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(path), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    source.unlink()
    return path
