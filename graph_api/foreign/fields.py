"""An object that came out of JSON, read field by field: each error names the place, the field and what stands there."""

# What comes out of JSON has no type until it is checked.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping
from enum import Enum
from reprlib import repr as _shown  # of values from outside, which may be long
from typing import Any, Final, TypeVar

from fusilli_ground.spelling import did_you_mean
from graph_api.errors import GraphError

__all__ = ["Fields"]

E = TypeVar("E", bound=Enum)
_MISSING: Final[Any] = object()
_HEX_FLOAT: Final = re.compile("[0-9A-Fa-f]{8}")
_SAYS_NOTHING: Final = (None, False, [], {}, "")


class Fields:
    """The fields of an object.

    Attributes:
        where: the place, as errors name it.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise GraphError(f"{where}: expected an object, got {_shown(value)}")
        self.where = where
        self._values: Mapping[str, Any] = value

    def fail(self, key: str, what: str) -> GraphError:
        """A GraphError about a field."""
        return GraphError(f"{self.where}: {key}: {what}")

    def get(self, key: str) -> Any:
        """A field as it is, None if it is not there."""
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Whether a field is there and no null."""
        return self._values.get(key) is not None

    def object(self, key: str) -> Fields:
        """An object; absent and null are an empty one."""
        value = self._values.get(key)
        return Fields({} if value is None else value, f"{self.where}: {key}")

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and values."""
        return self._values.items()

    def text(self, key: str, default: str = _MISSING) -> str:
        """A string."""
        return self._typed(key, str, "a string", default)

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """True or false."""
        return self._typed(key, bool, "true or false", default)

    def integer(self, key: str, default: int | None = _MISSING) -> Any:
        """An integer; null is the default."""
        return self._typed(key, int, "an integer", default)

    def list(self, key: str, default: list[Any] = _MISSING) -> list[Any]:
        """A list; null is the default."""
        return self._typed(key, list, "a list", default)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers."""
        values = self.list(key)
        if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
            raise self.fail(key, f"expected a list of integers, got {_shown(values)}")
        return tuple(values)

    def number(self, key: str, default: float | None = _MISSING) -> Any:
        """A float: a number, or as cuDNN writes them the eight hexadecimal digits of a 32-bit float."""
        value = self._present(key, default)
        return default if value is None else self.as_number(key, value)

    def as_number(self, key: str, value: object) -> float:
        """The float that a value stands for, see `number`."""
        if isinstance(value, str) and _HEX_FLOAT.fullmatch(value):
            (number,) = struct.unpack(">f", bytes.fromhex(value))
            return number
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, f"expected a number or eight hexadecimal digits of a float, got {_shown(value)}")
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)

    def choice(self, key: str, kind: type[E], default: E | None = _MISSING) -> Any:
        """A member of an enum by its name; null is the default."""
        value = self._present(key, default)
        if value is None:
            return default
        if not isinstance(value, str) or value not in kind.__members__:
            near, known = did_you_mean(value, kind.__members__), ", ".join(kind.__members__)
            raise self.fail(key, f"{_shown(value)} is unknown{near}; known are {known}")
        return kind[value]

    def refuse_others(self, known: Iterable[str]) -> None:
        """Raises GraphError for a field that is not known and says something: it may change what the object means."""
        known = tuple(known)
        for key, value in self._values.items():
            if key not in known and value not in _SAYS_NOTHING:
                near = did_you_mean(key, known)
                rest = f"its value is {_shown(value)}; known are {', '.join(known)}"
                raise self.fail(key, f"this field is not known{near}, {rest}")

    def _present(self, key: str, default: object) -> Any:
        value = self._values.get(key)
        if value is None and default is _MISSING:
            raise self.fail(key, "is null" if key in self._values else "is missing")
        return value

    def _typed(self, key: str, kind: type[Any], called: str, default: Any) -> Any:
        value = self._present(key, default)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fail(key, f"expected {called}, got {_shown(value)}")
        return value
