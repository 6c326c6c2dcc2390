"""PyTorch's own samples of its operators: what engines compute of them is what PyTorch computes."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hipdnn_backend.offload.torch_compile import fusilli, torch_report  # noqa: E402 - needs torch

pytestmark = pytest.mark.mlir

SHARDS = 24
SAMPLES = 4
"""Of each operator; each is a compile of its own, forward and backward."""
_LOOKED_AT = 200
CLOSE = 2e-5
"""Of the largest number: what sums in another order and other polynomials of exponentials and the like differ by."""
NO_FUNCTION = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",  # undefined content
    "nn.functional.scaled_dot_product_attention",  # its samples drop elements
    "nn.functional.rrelu", "nn.functional.feature_alpha_dropout",
}  # fmt: skip


def _operators() -> list[Any]:
    """In an order of their own; loading the table takes seconds, so nothing does when tests are collected."""
    pytest.importorskip("expecttest", reason="PyTorch's table of operators imports it")
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        op
        for op in op_db
        if torch.float32 in op.dtypes
        and op.name not in NO_FUNCTION
        and not op.name.startswith(("sparse.", "to_sparse", "jiterator", "__"))
    ]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _run(call: Any, args: Any, kwargs: Any, seed: int) -> tuple[list[Any], list[Any]]:
    """Results and gradients, on copies of the arguments."""
    copied = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), (args, kwargs)
    )
    torch.manual_seed(seed)
    results = list(_tensors(call(*copied[0], **copied[1])))
    leaves = [x for x in torch.utils._pytree.tree_leaves(copied) if isinstance(x, torch.Tensor) and x.requires_grad]
    outputs = [y for y in results if y.requires_grad and y.is_floating_point()]
    if not outputs or not leaves:
        return results, []
    ways = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in outputs]
    return results, list(torch.autograd.grad(outputs, leaves, ways, allow_unused=True))


def _check(what: str, got: Any, want: Any) -> None:
    assert (got is None) == (want is None), f"{what}: {got} and {want}"
    if want is None:
        return
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    # AOTAutograd gives gradients strides of its own.
    assert "gradient" in what or got.stride() == want.stride(), what
    finite = want[want.isfinite()] if want.is_floating_point() else want
    largest = float(finite.detach().double().abs().max()) if finite.numel() and want.dtype != torch.bool else 0.0
    torch.testing.assert_close(
        got, want, rtol=CLOSE, atol=CLOSE * largest if want.is_floating_point() else 0, equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )  # fmt: skip


def _wide(op: Any, args: Any, kwargs: Any, seed: int, kind: str, index: int) -> Any:
    """The same result or gradient in float64; None if PyTorch has none."""
    args, kwargs = torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda x: x.detach().double().requires_grad_(x.requires_grad) if x.dtype == torch.float32 else x,
        (args, kwargs),
    )
    try:
        results, gradients = _run(op, args, kwargs, seed)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return (results if kind == "result" else gradients)[index]


def _is_as_close(one: Any, other: Any, wide: Any) -> bool:
    """Where terms cancel, PyTorch's own result is roundings alone: ours may be as far off as that."""
    if one is None or other is None or wide is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    far, others = (float((each.detach().double() - wide.detach()).abs().max()) for each in (one, other))
    return far <= others


def _samples(op: Any, most: int) -> list[Any]:
    """Some of an operator's, from among all: the first ones are often alike, and single numbers."""
    try:
        found = list(itertools.islice(op.sample_inputs("cpu", torch.float32, op.supports_autograd), _LOOKED_AT))
        return found[:: max(1, len(found) // most)][:most]
    except (RuntimeError, ModuleNotFoundError):  # e.g. it is LAPACK's or SciPy's, and that is not here
        return []


def served(op: Any, most: int = SAMPLES) -> int:
    """Checks an operator's samples; how many operations engines did for them."""
    count = 0
    for number, sample in enumerate(_samples(op, most)):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        try:
            wanted = _run(op, args, kwargs, number)
        except (RuntimeError, NotImplementedError, TypeError):  # PyTorch itself does not
            continue
        torch._dynamo.reset()

        def call(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        compiled = torch.compile(call, backend=fusilli, dynamic=False)
        got = _run(compiled, args, kwargs, number)
        for kind, have, want in zip(("result", "gradient"), got, wanted, strict=True):
            assert len(have) == len(want)
            for index, (one, other) in enumerate(zip(have, want, strict=True)):
                try:
                    _check(f"{kind} {index} of sample {number}", one, other)
                except AssertionError:
                    if not _is_as_close(one, other, _wide(op, args, kwargs, number, kind, index)):
                        raise
        count += sum(graph.nodes for graph in torch_report(compiled).graphs)
    return count


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_samples_of_operators(shard: int) -> None:
    wrong: list[str] = []
    found: dict[str, int] = {}
    for op in _operators()[shard::SHARDS]:
        name = f"{op.name} {op.variant_test_name}".strip()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[name] = served(op)
            except Exception as error:  # of any kind: all operators are told
                wrong.append(f"{name}: {type(error).__name__}: {error}")
    print("\n".join(f"{name}: {count} operations in engines" for name, count in found.items()))
    assert not wrong, "\n\n".join(wrong)
    assert any(found.values())


FEW = (
    "addmm", "nn.functional.avg_pool2d", "nn.functional.conv_transpose2d", "nn.functional.gelu",
    "nn.functional.layer_norm", "softmax",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", FEW)
def test_a_sample_of_a_few_operators(name: str) -> None:
    (op,) = (op for op in _operators() if op.name == name and not op.variant_test_name)
    assert served(op, 2) > 0
