"""Signatures: what makes two groups equal, and what does not."""

from __future__ import annotations

import pytest

from hipdnn_backend.offload.passes.graph import FunctionGraph, functions
from hipdnn_backend.offload.passes.signature import Signatures
from tests.support.passes import parsed

V = "!torch.vtensor<[4],f32>"
W = "!torch.vtensor<[1],f32>"


def same(first: str, second: str, *, returned: str = "%a1, %b1") -> bool:
    """Whether two chains of two operations each have one signature; ``{p}`` is the prefix of a chain's values."""
    body = first.format(p="a") + second.format(p="b")
    kinds = ", ".join([V] * (returned.count(",") + 1))
    module = parsed(
        f"""func.func @f(%x: {V}, %y: {V}, %w: {W}) -> ({kinds}) {{
          %one = torch.constant.int 1
          %two = torch.constant.int 2
          {body}
          return {returned} : {kinds}
        }}"""
    )
    signatures = Signatures(FunctionGraph(next(functions(module)), max_literal=1))
    return signatures.of(0b0011) == signatures.of(0b1100)


def chain(x: str = "%x", other: str = "%y", name: str = "relu", scale: str = "%one", kind: str = V) -> str:
    return (
        f"%{{p}}0 = torch.aten.{name} {x} : {V} -> {V}\n"
        f"%{{p}}1 = torch.aten.add.Tensor %{{p}}0, {other}, {scale} : {V}, {kind}, !torch.int -> {V}\n"
    )


def test_equal_chains_on_other_values() -> None:
    assert same(chain(), chain(x="%y", other="%x"))


@pytest.mark.parametrize(
    "other",
    [
        chain(name="tanh"),
        chain(scale="%two"),
        chain(other="%w", kind=W),
        chain(x="%y", other="%y"),  # one value twice instead of two
    ],
)
def test_what_makes_a_difference(other: str) -> None:
    assert not same(chain(), other)


def test_what_escapes_makes_a_difference() -> None:
    assert not same(chain(), chain(), returned="%a1, %b1, %b0")
