"""Runs the blocks of a page in one process, as a reader would: ``python page_runner.py STEPS.json``.

Python blocks share their names, shell commands what earlier ones exported. Prints one JSON document: for each step the
exit code and what was printed. Stops at the first step that ends otherwise than it should.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the steps of the file that is named."""
    names: dict[str, Any] = {"__name__": "page"}
    done: list[dict[str, Any]] = []
    for step in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        run = _python if step["language"] == "python" else _shell
        code, said = run(step["text"], names)
        done.append({**step, "ended": code, "said": said})
        if code != step["code"]:
            break
    json.dump(done, sys.stdout)


def _shell(text: str, _: dict[str, Any]) -> tuple[int, str]:
    """One command; the variables that it leaves are those of the steps behind it."""
    variables = Path("variables.bin")
    script = f'{text}\ncode=$?\nenv -0 > "{variables.resolve()}"\nexit $code\n'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=250, stdin=subprocess.DEVNULL)
    pairs = (item.partition(b"=") for item in variables.read_bytes().split(b"\0") if item)
    os.environb.clear()
    os.environb.update({name: value for name, _, value in pairs})
    return done.returncode, done.stdout + done.stderr


def _python(text: str, names: dict[str, Any]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(compile(text, "page", "exec"), names)
        except Exception:
            traceback.print_exc()
            return 1, said.getvalue()
    return 0, said.getvalue()


if __name__ == "__main__":
    main()
