from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from fusilli_plugin import __version__
from fusilli_plugin.cli import cli

CODE = "from fusilli_plugin.cli import main; main()"
COMMANDS = list(cli.list_commands(click.Context(cli)))


def start(*args: str, **kwargs: object) -> subprocess.Popen[str]:
    code = "from fusilli_plugin.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,  # type: ignore[call-overload]
    )


def test_help_lists_every_command(fusilli: Callable[..., Result]) -> None:
    output = fusilli("--help").output
    assert all(f"\n  {name} " in output for name in COMMANDS)
    assert "Examples:\n" in output


@pytest.mark.parametrize(
    # what `convert` prints is a document in a form of its own
    "command",
    [name for name in COMMANDS if name not in ("cache", "convert", "install-plugin", "plugin-dir")],
)
def test_every_command_that_prints_more_than_a_path_has_json(fusilli: Callable[..., Result], command: str) -> None:
    assert "--json" in fusilli(command, "--help").output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(fusilli: Callable[..., Result], command: str) -> None:
    result = fusilli(command, "--help")
    assert result.exit_code == 0
    assert f"fusilli {command}" in result.output.partition("Examples:\n")[2]
    assert "--debug" in result.output


def test_the_nearest_command_is_offered(fusilli: Callable[..., Result]) -> None:
    assert "No such command 'inspekt' (did you mean inspect?)." in fusilli("inspekt", "x").stderr
    assert "No such command 'zzz'." in fusilli("zzz").stderr


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "fusilli_plugin", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"fusilli, version {__version__}\n"


def test_version(fusilli: Callable[..., Result]) -> None:
    assert fusilli("--version").output == f"fusilli, version {__version__}\n"


@pytest.mark.parametrize("args", [["frobnicate"], ["run"], ["compile", "nowhere.json", "--target", "cpu", "-o", "x"]])
def test_usage_errors_exit_with_2(fusilli: Callable[..., Result], args: list[str]) -> None:
    result = fusilli(*args)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_user_errors_are_one_paragraph_without_traceback(fusilli: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text("{}")
    result = fusilli("run", path, "--device", "cpu")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {path}: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(fusilli: Callable[..., Result], tmp_path: Path, place: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text("{}")
    args = ["run", str(path), "--device", "cpu"]
    result = fusilli(*(["--debug", *args] if place == "before" else [*args, "--debug"]))
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_a_bad_log_level_is_named(fusilli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSILLI_LOG_LEVEL", "loud")
    result = fusilli("cache", "stats")
    assert result.exit_code == 2
    assert "FUSILLI_LOG_LEVEL='loud'" in result.stderr


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fusilli_plugin.cli.cache._open", explode)
    assert isinstance(CliRunner().invoke(cli, ["cache", "stats"]).exception, ZeroDivisionError)


LOST = "standard output is closed, so what was to be printed is lost"
PRINTING = (["cache", "stats"], ["cache", "--help"], ["--help"], ["--version"])


@pytest.mark.parametrize("args", PRINTING)
def test_a_closed_pipe_ends_quietly(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", CODE, *args]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.a_few("args1", "args3")
@pytest.mark.parametrize("args", PRINTING)
def test_a_standard_output_that_cannot_be_written_is_told(args: list[str]) -> None:
    full = ["bash", "-c", 'exec "$@" >/dev/full', "sh"]
    closed = ["bash", "-c", 'exec "$@" >&-', "sh"]
    for shell, why in ((full, "[Errno 28] No space left on device"), (closed, LOST)):
        done = subprocess.run([*shell, sys.executable, "-c", CODE, *args], capture_output=True, text=True, timeout=60)
        assert done.stderr == f"Error: {why}\n"
        assert done.returncode == 2


@pytest.mark.parametrize("descriptor", [0, 2])
def test_a_closed_standard_file_is_no_error(descriptor: int) -> None:
    code = f"import os, sys; os.close({descriptor}); os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    args = ["run", "-", "--device", "cpu"] if descriptor == 0 else ["cache", "stats"]
    done = subprocess.run([sys.executable, "-c", code, CODE, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if descriptor == 0 else 0)
    assert "Traceback" not in done.stderr
    assert ("standard input: this is no graph" in done.stderr) == (descriptor == 0)


def test_a_target_list_that_names_nothing_is_a_usage_error(fusilli: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text("{}")
    result = fusilli("inspect", tmp_path / "g.json", "--target", " , ")
    assert result.exit_code == 2
    assert "it names nothing" in result.stderr


@pytest.mark.parametrize("module", ["click", "fusilli_plugin.cli.main", "fusilli_plugin.cli.cache"])
def test_an_interrupt_of_an_import_ends_quietly(module: str) -> None:
    code = f"""if True:
        import os, signal, sys

        class Interrupting:
            def find_spec(self, name, *_):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Interrupting())
        {CODE}"""
    command = [sys.executable, "-c", code, "cache", "stats"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_interrupt_at_the_end_ends_quietly() -> None:
    code = f"import atexit, signal; atexit.register(signal.raise_signal, signal.SIGINT); {CODE}"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_ignored_interrupt_stays_ignored() -> None:
    shell = ["bash", "-c", 'trap "" INT; exec "$@"', "sh"]
    done = subprocess.run([*shell, sys.executable, "-c", f"import signal; signal.raise_signal(2); {CODE}", "--version"],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.stdout == f"fusilli, version {__version__}\n"


def test_an_interrupt_ends_quietly() -> None:
    # standard input stays open, so the command waits for the rest of the graph until the interrupt comes
    process = start("run", "-", "--device", "cpu", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("{")
    process.stdin.flush()
    _wait_until_read(process.stdin.fileno())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


def _wait_until_read(pipe: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        unread = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
        if not unread:
            return
        time.sleep(0.05)
    pytest.fail("the command does not read standard input")
