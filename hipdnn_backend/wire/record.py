"""Records: immutable objects with keyword arguments, and the names of the wire's scalar types.

A record class is written like a frozen dataclass and type checkers treat it as one. It is not made by `dataclasses`,
because that compiles about six functions per class: for the forty classes of the schema that takes five times as long
as importing the rest of this package. The annotations are more than documentation here: their order is the slot order
of the table and their text names the wire type, see `hipdnn_backend.wire.layout`.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self, TypeAlias, dataclass_transform

__all__ = ["F32", "F64", "I32", "I64", "U32", "Record", "Uuid"]

I32: TypeAlias = int
I64: TypeAlias = int
U32: TypeAlias = int
F32: TypeAlias = float
F64: TypeAlias = float
Uuid: TypeAlias = bytes


@dataclass_transform(eq_default=True, frozen_default=True, kw_only_default=True)
class Record:
    """Base of all records: equality and hash by value, no assignment after construction.

    A field without a default is one that the schema calls required: it must be given. The schema's verifiers do not
    enforce that, so decoding fills an absent one with the schema's default.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:  # each class has FIELDS of its own
        own = [name for name, text in cls.__annotations__.items() if not text.startswith("ClassVar")]
        cls.FIELDS = (*cls.FIELDS, *own)  # pyright: ignore[reportConstantRedefinition]
        cls._defaults = cls._defaults | {name: cls.__dict__[name] for name in own if name in cls.__dict__}

    def __init__(self, **values: Any) -> None:
        complete = self._defaults | values
        if len(complete) != len(self.FIELDS) or not complete.keys() >= set(self.FIELDS):
            _refuse(type(self).__name__, self.FIELDS, complete)
        self.__dict__.update(complete)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """A record that takes over ``values``, which hold every field and nothing else (not checked)."""
        record = object.__new__(cls)
        object.__setattr__(record, "__dict__", values)
        return record

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**(self.__dict__ | changes))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; replace({name}=...) makes a changed copy")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__[name] for name in self.FIELDS)))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.FIELDS)
        return f"{type(self).__name__}({shown})"


def _refuse(owner: str, fields: tuple[str, ...], given: dict[str, Any]) -> NoReturn:
    missing = [name for name in fields if name not in given]
    unknown = [name for name in given if name not in fields]
    parts = [f"{what} {', '.join(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
    raise TypeError(f"{owner}: {'; '.join(parts)}; its fields are {', '.join(fields)}")
