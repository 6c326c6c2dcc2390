"""The answer to "is this graph served", for people and in conditions."""

from __future__ import annotations

import pytest

from fusilli_ground.errors import FusilliError, NotSupportedError
from fusilli_ground.support import Support


def test_a_yes() -> None:
    assert Support.yes()
    assert str(Support.yes()) == "served"
    Support.yes().require()


def test_a_no_says_where_and_why() -> None:
    answer = Support.no("x is BOOLEAN; cast it", node="conv_0", rule="dtype")
    assert not answer
    assert str(answer) == "declined: node 'conv_0': x is BOOLEAN; cast it [dtype]"
    with pytest.raises(NotSupportedError, match="cast it"):
        answer.require()
    assert issubclass(NotSupportedError, FusilliError)
