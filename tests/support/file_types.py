"""What stands around a model that tells the types of files: its input, its words, and files of some types."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.wheel_models import MAGIKA, read

__all__ = ["features", "files", "labels"]

ROOT = Path(__file__).resolve().parents[2]
_NO_BYTE = 256


def features(data: bytes) -> np.ndarray[Any, Any]:
    """Both ends of a file without white space, filled up with what is no byte."""
    first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    return np.array([[*first, *[_NO_BYTE] * (2048 - len(first) - len(last)), *last]], np.int32)


def files() -> dict[str, bytes]:
    """A file of each of some types, by the model's word for the type."""
    array = io.BytesIO()
    np.save(array, np.linspace(0, 1, 1000))
    return {
        "python": Path(__file__).read_bytes(),
        "toml": (ROOT / "pyproject.toml").read_bytes(),
        "makefile": (ROOT / "Makefile").read_bytes(),
        "c": (ROOT / "fusilli_plugin" / "shim" / "ort.c").read_bytes(),
        "elf": Path(sys.executable).read_bytes(),
        "gzip": gzip.compress(b"twice the same text " * 200, mtime=0),
        "npy": array.getvalue(),
    }


def labels() -> list[str]:
    """What the numbers of the model's classes stand for."""
    return json.loads(read(MAGIKA.wheel, "magika/models/standard_v3_3/config.min.json"))["target_labels_space"]
