from __future__ import annotations

import pytest

from tests.support.filecheck import check_ir

TEXT = """\
%0 = a.one %arg0
%1 = a.two %0
return %1
"""


def test_directives_that_hold() -> None:
    check_ir(
        TEXT,
        """
        CHECK:      [[X:%.*]] = a.one %arg0
        CHECK-NEXT: [[Y:%.*]] = a.two [[X]]
        CHECK-NOT:  a.three
        CHECK:      return [[Y]]
        """,
    )


@pytest.mark.parametrize(
    "checks",
    [
        "CHECK: a.three",
        "CHECK: a.one\nCHECK-NEXT: return",
        "CHECK: [[X:%.*]] = a.two\nCHECK: return [[X]]x",
        "CHECK: a.one\nCHECK-NOT: a.two\nCHECK: return",
        "",
        "CHEKC: a.one",
    ],
)
def test_directives_that_do_not_hold(checks: str) -> None:
    with pytest.raises(AssertionError):
        check_ir(TEXT, checks)
