"""What keeps faults of the compiler out of our code and can be switched off by name: the one table of them.

Each is a flag, or a form that is not taken (``iree_bridge/targets/variants.py`` decides which graphs get it). Flags
that are given last win, so what undoes a workaround is a flag behind all others. Workarounds in the emission itself
(small floats decoded by integers, filters put in the order of their images) are part of what a graph means in IR: no
flag undoes them, and they are not in this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fusilli_ground.spelling import did_you_mean
from graph_api import FusilliError

__all__ = ["WORKAROUNDS", "Workaround", "raw_flags"]


class Workaround(NamedTuple):
    """One workaround.

    Attributes:
        against: what goes wrong without it, as far as known.
        backends: whose code has it.
        undo: flags that switch it off.
    """

    against: str
    backends: tuple[str, ...]
    undo: tuple[str, ...]


WORKAROUNDS: Final[dict[str, Workaround]] = {
    "whole-sums": Workaround(
        "sums that are split over kernels in graphs with convolutions are wrong",
        ("rocm",),
        ("--iree-dispatch-creation-enable-split-reduction=true",),
    ),
    "loop-counters": Workaround(
        "loops whose counters are reduced in strength start at negative offsets, which buffer instructions do not wrap",
        ("rocm",),
        ("--disable-lsr=false",),
    ),
    "pairs": Workaround(
        "packed instructions of scalars that were joined read the upper half of a constant, which has none",
        ("rocm",),
        ("--vectorize-slp=true",),
    ),
    "padding": Workaround(
        "padding taken into kernels that gather, that are narrow or that pool is read as garbage",
        ("rocm",),
        ("--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops=true",),
    ),
    "product-tiles": Workaround(
        "tiles of products of few rows do not compile; tails of sums in groups are not masked",
        ("rocm", "cuda"),
        ("--iree-codegen-llvmgpu-use-tile-and-fuse-matmul=true",),
    ),
    "convolution-tiles": Workaround(
        "gathered convolutions add the terms of images and filters in different orders",
        ("rocm", "cuda"),
        ("--iree-codegen-llvmgpu-use-igemm=true",),
    ),
    "vector-distribution": Workaround(
        "products by tensor cores are wrong on NVIDIA GPUs",
        ("cuda",),
        ("--iree-codegen-llvmgpu-use-vector-distribution=true",),
    ),
    "double": Workaround(
        "DOUBLE is computed in float while its buffers stay double, which gives garbage",
        ("rocm", "cuda", "llvm-cpu"),
        ("--iree-input-demote-f64-to-f32=true",),
    ),
    "stack": Workaround(
        "an embedding followed by a layer norm needs more stack than the compiler allows by default",
        ("llvm-cpu",),
        ("--iree-llvmcpu-stack-allocation-limit=32768",),
    ),
}
"""Name → workaround. ``fusilli fuzz --raw NAME`` switches it off, ``--raw all`` every one of the target's."""


def raw_flags(names: Iterable[str], backend: str) -> tuple[str, ...]:
    """The flags that switch workarounds off.

    Raises:
        FusilliError: there is none of that name, or code for this backend does not have it.
    """
    flags: list[str] = []
    for name in names:
        if name == "all":
            flags += [flag for each in WORKAROUNDS.values() if backend in each.backends for flag in each.undo]
            continue
        if name not in WORKAROUNDS:
            known = ", ".join(("all", *WORKAROUNDS))
            raise FusilliError(f"workaround {name!r} is unknown{did_you_mean(name, WORKAROUNDS)}; known are {known}")
        found = WORKAROUNDS[name]
        if backend not in found.backends:
            raise FusilliError(f"code for {backend} has no workaround {name!r}: it is of {', '.join(found.backends)}")
        flags += found.undo
    return tuple(dict.fromkeys(flags))
