from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusilli_ground import environment as trusted
from fusilli_ground.errors import OptionError
from iree_bridge.compile.options import CompileMode, Options

ROOT = Path(__file__).resolve().parents[2]


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = Options.from_env({})
    assert found.cache_dir == tmp_path / "fusilli-plugin"
    assert found.cache_size == 4 * 2**30
    assert found.compile is CompileMode.AUTO
    assert 1 <= found.workers <= 4
    assert found.device == "hip"
    assert found.extra_flags == ()


def test_every_variable_is_read() -> None:
    found = Options.from_env(
        {
            "FUSILLI_CACHE_DIR": "/a/cache",
            "FUSILLI_CACHE_READONLY": "/b:/c",
            "FUSILLI_CACHE_SIZE": "2M",
            "FUSILLI_COMPILE": "Never",
            "FUSILLI_EXTRA_COMPILER_FLAGS": "--one --two='a b'",
            "FUSILLI_COMPILE_TIMEOUT": "2.5",
            "FUSILLI_COMPILE_MEMORY": "3GiB",
            "FUSILLI_COMPILE_WORKERS": "3",
            "FUSILLI_COMPILE_IDLE": "7",
            "FUSILLI_KEEP_FAILURES": "0",
            "FUSILLI_PYTHON": "/usr/bin/python3",
            "FUSILLI_DEVICE": "cpu",
            "FUSILLI_LOG_LEVEL": "debug",
        }
    )
    assert found == Options(
        cache_dir=Path("/a/cache"),
        cache_readonly=(Path("/b"), Path("/c")),
        cache_size=2 * 2**20,
        compile=CompileMode.NEVER,
        extra_flags=("--one", "--two=a b"),
        timeout=2.5,
        memory=3 * 2**30,
        workers=3,
        idle=7.0,
        failures=0,
        python=Path("/usr/bin/python3"),
        device="cpu",
        log_level="DEBUG",
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FUSILLI_CACHE_SIZE", "4X", "not a size"),
        ("FUSILLI_CACHE_SIZE", "0", "cache_size=0 must be positive"),
        ("FUSILLI_COMPILE", "maybe", "known are auto, late, never"),
        ("FUSILLI_COMPILE_TIMEOUT", "soon", "not a number of seconds"),
        ("FUSILLI_COMPILE_TIMEOUT", "nan", "must be positive"),
        ("FUSILLI_COMPILE_TIMEOUT", "inf", "timeout=inf must be at most 1000000 seconds"),
        ("FUSILLI_COMPILE_IDLE", "1e300", "idle=1e[+]300 must be at most"),
        ("FUSILLI_COMPILE_MEMORY", "99999999T", "memory=.* must be below 2.63 bytes"),
        ("FUSILLI_CACHE_DIR", "~nobody-of-that-name/cache", "FUSILLI_CACHE_DIR=.*no path can be made of it"),
        ("FUSILLI_EXTRA_COMPILER_FLAGS", "--a=\udcff", "no UTF-8 text"),
        ("FUSILLI_COMPILE_WORKERS", "-1", "not a whole number"),
        ("FUSILLI_EXTRA_COMPILER_FLAGS", "'open", "FUSILLI_EXTRA_COMPILER_FLAGS"),
        ("FUSILLI_LOG_LEVEL", "LOUD", "known are DEBUG"),
    ],
)
def test_a_meaningless_value_is_an_error_that_names_it(variable: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Options.from_env({variable: value})


def test_values_given_in_code_take_their_form() -> None:
    found = Options(cache_dir="c", cache_readonly=["a", Path("b")], compile="never", extra_flags=["--x"], python="p")  # pyright: ignore[reportArgumentType]
    assert found.compile is CompileMode.NEVER
    here = Path.cwd()
    assert (found.cache_dir, found.cache_readonly, found.python) == (here / "c", (here / "a", here / "b"), here / "p")
    assert Options(cache_dir=Path("~/c")).cache_dir == Path.home() / "c"
    assert Options(timeout=np.int64(30), workers=np.int64(5)).timeout == 30  # pyright: ignore[reportArgumentType]
    assert found.extra_flags == ("--x",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compile": "nevr"}, "compile='nevr': known are auto, late, never"),
        ({"extra_flags": "--x"}, "extra_flags='--x': give a sequence of texts"),
        ({"extra_flags": [1]}, "extra_flags=.*1 is no text"),
        ({"cache_readonly": "a"}, "cache_readonly='a': give a sequence of paths"),
        ({"cache_dir": 3}, "cache_dir=3"),
        ({"cache_dir": "a\0b"}, "cache_dir=.*no path can be made of it"),
        ({"cache_dir": "/tmp/\ud800"}, "cache_dir=.*no path can be made of it"),
        ({"cache_readonly": ["a\0b"]}, "cache_readonly=.*no path can be made of it"),
        ({"python": ""}, "python='': no path can be made of it"),
        ({"log_level": "x"}, "log_level='x': known are DEBUG"),
        ({"cache_size": 1.5}, "cache_size=1.5"),
        ({"workers": "2"}, "workers='2'"),
        ({"timeout": "2"}, "timeout='2': not a number"),
        ({"verify_first": "never"}, "verify_first='never': give True or False"),
        ({"device": None}, "device=None"),
    ],
)
def test_a_meaningless_value_given_in_code_is_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Options(**given)


def test_empty_means_unset() -> None:
    assert Options.from_env({"FUSILLI_CACHE_SIZE": "  "}).cache_size == 4 * 2**30


def test_the_environment_is_ignored_if_the_kernel_says_secure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSILLI_DEVICE", "cpu")
    assert Options.from_env().device == "cpu"
    vector = struct.pack("@NNNN", 6, 4096, 23, 1)
    monkeypatch.setattr(trusted.Path, "read_bytes", lambda _self: vector)
    assert Options.from_env().device == "hip"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its real user id")
def test_the_environment_is_ignored_in_a_setuid_process(tmp_path: Path) -> None:
    code = "import os; os.setresuid(65534, 0, 0); from iree_bridge import Options; print(Options.from_env())"
    environment = {
        "FUSILLI_CACHE_DIR": str(tmp_path / "planted"),
        "XDG_CACHE_HOME": str(tmp_path),
        "HOME": str(tmp_path),
    }
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert str(tmp_path) not in out.stdout
    assert "fusilli-plugin" in out.stdout


def test_what_is_given_comes_before_the_environment() -> None:
    found = Options.from_env({"FUSILLI_EXTRA_COMPILER_FLAGS": "--a", "FUSILLI_DEVICE": "cpu"}, extra_flags=("--b",))
    assert (found.extra_flags, found.device) == (("--b",), "cpu")
    with pytest.raises(TypeError, match="no_such"):
        Options.from_env({}, no_such=1)
