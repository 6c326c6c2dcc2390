"""Sizes of open dims for which a model is compiled in advance, and which of them serves a shape.

An argument whose extent follows from an open dim has an `Extent`. Where an analysis has shown that rows which are added
reach no result that is kept (`hipdnn_backend.offload.frontend.padding`), arguments are padded to the next size;
otherwise only those very sizes are served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from math import prod
from typing import Final

from fusilli_ground.errors import OptionError
from fusilli_ground.spelling import did_you_mean

__all__ = [
    "Bucket",
    "Dims",
    "Extent",
    "OnNewShape",
    "OpenDim",
    "Sizes",
    "check_names",
    "check_sizes",
    "combinations",
    "kept",
    "padded",
    "parse_sizes",
    "served_by",
]

Dims = tuple[tuple[int, ...], ...]
"""The extents of each of some tensors."""
Sizes = Mapping[str, tuple[int, ...]]
"""Name of an open dim → the sizes that it shall have, rising."""
Bucket = Mapping[str, int]
"""Name of an open dim → one of its sizes."""

_MOST: Final = 256  # combinations of sizes, each of which is a compile
_LARGEST: Final = 1 << 31
_PART: Final = re.compile(r"(\d+)(?:\.\.(\d+)(?::(\d+))?)?")


class OnNewShape(StrEnum):
    """What a run does whose shape has no code.

    FALLBACK: ONNX Runtime's kernels, or PyTorch's, run it, and again until its code is there.
    WAIT: it waits for the code.
    ERROR: it is an error.
    """

    FALLBACK = "fallback"
    WAIT = "wait"
    ERROR = "error"

    @classmethod
    def read(cls, text: str) -> OnNewShape:
        """What an option says.

        Raises:
            ValueError: with what it may say.
        """
        try:
            return cls(text)
        except ValueError:
            raise ValueError(", ".join(each.value for each in cls)) from None


@dataclass(frozen=True, slots=True)
class Extent:
    """An extent that follows from an open dim: ``per`` times its size.

    Attributes:
        number: of the argument.
        axis: of it.
        per: elements along the axis for each.
    """

    number: int
    axis: int
    per: int = 1


@dataclass(frozen=True)
class OpenDim:
    """A dim that has sizes in advance.

    Attributes:
        name: in the model.
        sizes: that code is for, rising.
        inputs: the extents of inputs that follow from it.
        outputs: the axes of results that are cut after a padded run.
        refusal: why nothing is padded, "" if it is harmless.
    """

    name: str
    sizes: tuple[int, ...]
    inputs: tuple[Extent, ...]
    outputs: tuple[Extent, ...] = ()
    refusal: str = ""

    def size_in(self, dims: Dims) -> int | None:
        """The size that the inputs' dims say; None if they contradict each other or it is empty."""
        found = {divmod(dims[each.number][each.axis], each.per) for each in self.inputs}
        size, rest = next(iter(found)) if len(found) == 1 else (0, 0)
        return size if size and not rest else None


def parse_sizes(text: str) -> dict[str, tuple[int, ...]]:
    """What ``batch=1,2,4,8 seq=64..512:64`` says.

    Raises:
        OptionError: it is malformed, a range is empty, or there are too many combinations.
    """
    found: dict[str, tuple[int, ...]] = {}
    for item in text.split():
        name, sign, sizes = item.rpartition("=")
        if not sign or not name:
            raise OptionError(f"shapes: {item!r} is not NAME=SIZES, e.g. batch=1,2,4,8 or seq=64..512:64")
        if name in found:
            raise OptionError(f"shapes: dim '{name}' is given twice; list all its sizes once, separated by commas")
        found[name] = tuple(sorted({size for part in sizes.split(",") for size in _sizes(name, part)}))
    if not found:
        raise OptionError("shapes: it names no dim; give NAME=SIZES, e.g. batch=1,2,4,8 seq=64..512:64")
    _check_count(found)
    return found


def _sizes(name: str, part: str) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        raise OptionError(
            f"shapes: dim '{name}': {part!r} is no size; it takes numbers like 4, and ranges like 64..512:64"
        )
    first, step = int(match[1]), int(match[3] or 1)
    last = int(match[2]) if match[2] else first
    if not 0 < first < _LARGEST or last >= _LARGEST:
        raise OptionError(f"shapes: dim '{name}': {part}: a size is from 1 to {_LARGEST - 1}")
    if not step or last < first:
        reason = "its step is 0" if not step else f"{first} is above {last}"
        raise OptionError(f"shapes: dim '{name}': the range {part} is empty: {reason}; write FIRST..LAST:STEP")
    if (last - first) // step >= _MOST:
        raise OptionError(f"shapes: dim '{name}': the range {part} has more than {_MOST} sizes; take a larger step")
    return range(first, last + 1, step)


def check_sizes(sizes: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Sizes as a program gives them, in order.

    Raises:
        OptionError: one is none, a dim has none, or there are too many combinations.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name, given in sizes.items():
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise OptionError(f"shapes: dim {name!r}: expected a list of sizes, got {given!r}")
        listed = list(given)
        for size in listed:
            if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < _LARGEST:
                raise OptionError(f"shapes: dim '{name}': {size!r} is no size; a size is from 1 to {_LARGEST - 1}")
        if not listed:
            raise OptionError(f"shapes: dim '{name}' has no sizes")
        found[name] = tuple(sorted(set(listed)))
    _check_count(found)
    return found


def _check_count(sizes: Sizes) -> None:
    count = prod(map(len, sizes.values()))
    if count > _MOST:
        shown = " times ".join(f"{len(each)} of '{name}'" for name, each in sizes.items())
        raise OptionError(f"shapes: {shown} are {count} combinations, each of which is compiled; at most {_MOST}")


def check_names(sizes: Sizes, inputs: Mapping[str, Sequence[int | str | None]]) -> None:
    """Refuse sizes of dims that no input has.

    Args:
        sizes: by the name of the dim, or ``input.axis`` for one without a name.
        inputs: name → dims: an extent, the name of an open one, "" or None for one without a name.

    Raises:
        OptionError: names the dim, its sizes and what there is.
    """
    known = {
        (dim or f"{name}.{axis}"): f"input '{name}', dim {axis}"
        for name, dims in inputs.items()
        for axis, dim in enumerate(dims)
        if not isinstance(dim, int)
    }
    for name, given in sizes.items():
        if name in known:
            continue
        owner, _, axis = name.rpartition(".")
        dims = inputs.get(owner, ())
        if axis.isdecimal() and int(axis) < len(dims):
            dim = dims[int(axis)]
            fixed = f"is {dim} in the model" if isinstance(dim, int) else f"is called '{dim}'; use that name"
            raise OptionError(f"shapes: {name}={_shown(given)}: dim {axis} of input '{owner}' {fixed}")
        there = ", ".join(f"{each} ({where})" for each, where in known.items()) or "none"
        raise OptionError(
            f"shapes: {name}={_shown(given)}: no input has an open dim of this name{did_you_mean(name, known)}; "
            f"open dims are: {there}"
        )


def _shown(sizes: Iterable[int]) -> str:
    return ",".join(map(str, sizes))


def combinations(sizes: Sizes) -> Iterator[dict[str, int]]:
    """Each size of each dim with each of the others."""
    for chosen in product(*sizes.values()):
        yield dict(zip(sizes, chosen, strict=True))


def served_by(opened: Sequence[OpenDim], dims: Dims) -> tuple[dict[str, int], dict[str, int]] | None:
    """The sizes that inputs of these dims have, and those of the bucket that serves them; None if none does.

    Args:
        opened: the dims that have sizes in advance.
        dims: of the inputs.
    """
    have: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for each in opened:
        if not each.inputs:
            continue
        size = each.size_in(dims)
        if size is None:
            return None
        next_size = size if each.refusal else next((other for other in each.sizes if other >= size), None)
        if next_size is None or next_size not in each.sizes:
            return None
        have[each.name], wanted[each.name] = size, next_size
    return have, wanted


def padded(opened: Sequence[OpenDim], dims: Dims, bucket: Bucket) -> Dims:
    """The dims of inputs that are padded to a bucket."""
    made = [list(each) for each in dims]
    for each in opened:
        for at in each.inputs:
            made[at.number][at.axis] = at.per * bucket[each.name]
    return tuple(map(tuple, made))


def kept(opened: Sequence[OpenDim], dims: Dims, have: Bucket, bucket: Bucket) -> Dims:
    """The dims of results that are kept of a padded run.

    Args:
        opened: the dims that have sizes in advance.
        dims: of the results of the bucket.
        have: sizes of the inputs.
        bucket: to which they were padded.
    """
    made = [list(each) for each in dims]
    for each in opened:
        for at in each.outputs:
            made[at.number][at.axis] = made[at.number][at.axis] // bucket[each.name] * have[each.name]
    return tuple(map(tuple, made))
