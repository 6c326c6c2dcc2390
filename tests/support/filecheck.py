"""Golden IR beside the code that makes it: FileCheck directives in a string."""

from __future__ import annotations

import contextlib
import io

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import DumpInputKind, Options
from filecheck.parser import Parser, pattern_for_opts

__all__ = ["check_ir"]


def check_ir(text: str, checks: str) -> None:
    """Asserts that ``text`` satisfies FileCheck directives: ``CHECK:``, ``CHECK-NEXT:``, ``[[X:%.*]]`` and so on.

    Raises:
        AssertionError: it does not, or ``checks`` holds no directive; the message has FileCheck's and the text.
    """
    options = Options(match_filename="checks", dump_input=DumpInputKind.FAIL)
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    with contextlib.redirect_stderr(io.StringIO()) as complaint:
        code = Matcher(options, FInput("ir", text), parser).run()
    assert code == 0, f"{complaint.getvalue()}\n{text}"
