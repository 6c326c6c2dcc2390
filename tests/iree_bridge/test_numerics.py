"""Every case of the tables against the float64 reference, per element: on the CPU, or where ``--device`` says."""

from __future__ import annotations

import pytest

from tests.cases import OpCase, all_cases
from tests.support.cases import assert_right

pytestmark = pytest.mark.iree_cpu

_CASES = [
    pytest.param(case, id=f"{family}-{case.name}", marks=() if case.fast else (pytest.mark.slow,))
    for family, case in all_cases()
]


@pytest.mark.parametrize("case", _CASES)
def test_case(case: OpCase, request: pytest.FixtureRequest) -> None:
    assert_right(case, str(request.config.getoption("--device")))
