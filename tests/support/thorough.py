"""The middle of three sets of tests: what ``make test`` runs a sample of, and ``make test-thorough`` the rest.

``@pytest.mark.a_few("gfx942-half", "*-float")`` on a parametrised test names the cases of the sample, by their ids;
``*`` stands for anything. All other cases become ``thorough``. What is in the sample is written down and never drawn.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import pytest

__all__ = ["mark_the_others"]


def mark_the_others(items: Iterable[pytest.Item], *, all_are_here: bool) -> None:
    """Marks what ``a_few`` leaves out as ``thorough``.

    Args:
        items: as collected.
        all_are_here: whether each test is here with all its cases, so that a name without a case is a mistake.

    Raises:
        UsageError: a test is not parametrised, or has no case of a name.
    """
    found: dict[tuple[str, str], bool] = defaultdict(bool)
    for item in items:
        mark = item.get_closest_marker("a_few")
        if mark is None:
            continue
        test = item.nodeid.partition("[")[0]
        callspec = getattr(item, "callspec", None)
        if callspec is None or not mark.args:
            raise pytest.UsageError(f"{test}: a_few takes ids of cases, and there are none")
        kept = {name: _fits(name, callspec.id) for name in mark.args}
        if not any(kept.values()):
            item.add_marker(pytest.mark.thorough)
        for name, fits in kept.items():
            found[test, name] |= fits
    lost = [f"{test}: {name!r}" for (test, name), fits in found.items() if not fits]
    if all_are_here and lost:
        raise pytest.UsageError("a_few names cases that do not exist:\n" + "\n".join(lost))


def _fits(name: str, case: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, name.split("*"))), case, re.DOTALL) is not None
