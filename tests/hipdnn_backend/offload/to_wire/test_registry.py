"""The registry of rules, and graphs of random operations."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hipdnn_backend.offload.to_wire import RULES, NotTranslated
from hipdnn_backend.offload.to_wire.registry import register_rule
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder, Ref, context

pytestmark = pytest.mark.mlir

# Operations of torch.export, and of ours, that this torch dialect does not define: they come as torch.operator.
FROM_EXPORT = {
    "torch.aten._fused_rms_norm",
    "torch.aten._fused_rms_norm_backward",
    "torch.aten._native_batch_norm_legit",
    "torch.aten._native_batch_norm_legit_no_training",
    "torch.aten._scaled_dot_product_flash_attention_for_cpu",
    "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward",
    "torch.aten.silu_backward",
    "torch.aten.squeeze.dims",
    "torch.fusilli.grouped_mm",
    "torch.fusilli.grouped_mm_gradient",
}


def test_rules_are_of_operations_that_exist() -> None:
    unknown = {name for name in RULES if not context().is_registered_operation(name)}
    assert unknown == FROM_EXPORT


def test_two_rules_for_one_operation_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"torch.aten.relu has the rules of .*pointwise and .*pointwise"):
        register_rule("aten.relu", RULES["torch.aten.relu"])


def test_a_miss_says_what_is_near() -> None:
    r = Recorder()
    made = r.op("argmax", r.input(2, 2), 1, where="pick")
    with pytest.raises(NotTranslated, match=r"'pick': no hipDNN operation is known for it .*near it are torch\.aten"):
        r.translate(made)


@st.composite
def recorded(draw: st.DrawFn) -> tuple[Recorder, list[Ref]]:
    """Elementwise operations, reductions, views and products of a few small tensors."""
    r = Recorder()
    values = [r.input(*draw(st.sampled_from([(2, 3, 4), (3, 4), (4,), (2, 1, 4)]))) for _ in range(2)]
    for _ in range(draw(st.integers(1, 6))):
        value = draw(st.sampled_from(values))
        values.append(_grown(draw, r, value, values))
    count = draw(st.integers(1, 2))
    return r, values[-count:]


def _grown(draw: st.DrawFn, r: Recorder, value: Ref, values: list[Ref]) -> Ref:
    rank = value.value.dim()
    kind = draw(st.sampled_from(["tanh", "add", "mul", "permute", "sum", "mean", "unsqueeze", "squeeze", "softmax",
                                 "flatten", "expand", "mm"]))  # fmt: skip
    others = [other for other in values if _broadcasts(value, other)]
    if kind in ("add", "mul"):
        return r.op(f"{kind}.Tensor", value, draw(st.sampled_from(others)))
    if rank == 0 or kind == "tanh":
        return r.op("tanh", value)
    axis = draw(st.integers(0, rank - 1))
    actions: dict[str, Any] = {
        "permute": lambda: r.op("permute", value, draw(st.permutations(range(rank)))),
        "sum": lambda: r.op("sum.dim_IntList", value, [axis], draw(st.booleans())),
        "mean": lambda: r.op("mean.dim", value, [axis], True),
        "unsqueeze": lambda: r.op("unsqueeze", value, axis),
        "squeeze": lambda: r.op("squeeze", value),
        "softmax": lambda: r.op("softmax.int", value, axis),
        "flatten": lambda: r.op("flatten.using_ints", value, 0, rank - 1),
        "expand": lambda: r.op("expand", value, [3 if size == 1 else size for size in value.value.shape]),
        "mm": lambda: r.op("matmul", value, r.input(value.value.shape[-1], 3)),
    }
    return actions[kind]()


def _broadcasts(one: Ref, other: Ref) -> bool:
    pairs = zip(reversed(one.value.shape), reversed(other.value.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recorded())
def test_what_is_translated_is_right(drawn: tuple[Recorder, list[Ref]]) -> None:
    """Any graph that comes out computes what PyTorch does; the rest is refused."""
    r, outputs = drawn
    with contextlib.suppress(NotTranslated):
        r.check(*outputs, tolerance=1e-5)
