"""Steps of optimisers, as ``ai.onnx.preview.training`` defines them; tensors come in groups, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

_DOMAIN = "ai.onnx.preview.training"


def _each(b: Builder, kinds: int, step: Callable[..., Sequence[str]]) -> list[str]:
    """``step`` of each tensor's operands; results in the order of the outputs: all first ones, all second ones ..."""
    operands = list(b.node.input[2:])
    count = len(operands) // kinds
    if count * kinds != len(operands):
        raise b.fail("training", f"{len(operands)} tensors are no groups of {kinds}")
    results = [step(b, *(operands[kind * count + i] for kind in range(kinds))) for i in range(count)]
    return [value for kind in zip(*results, strict=True) for value in kind]


def _known(b: Builder) -> bool:
    return all(b.dims(name) is not None for name in b.node.input)


def _scaled(b: Builder, x: str, factor: float) -> str:
    return b.op("Mul", x, b.like(b.node.input[2], factor))


def _regular(b: Builder, x: str, gradient: str) -> str:
    """The gradient with that of half the squared norm."""
    factor = b.given.get("norm_coefficient", 0.0)
    return b.op("Add", _scaled(b, x, factor), gradient) if factor else gradient


def _scalar(b: Builder, index: int) -> str:
    """The rate or the number of steps, in the tensors' type and without dims."""
    type_ = b.type(b.node.input[2])
    assert type_ is not None
    return b.op("Reshape", b.op("Cast", b.node.input[index], to=type_.element), b.constant([], int))


@rewrites("Momentum", domain=_DOMAIN)
def _momentum(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    if not _known(b):
        return None
    rate, alpha, mode = _scalar(b, 0), b.given["alpha"], b.given["mode"]
    if mode not in ("standard", "nesterov"):
        raise b.fail("training", f"mode {mode!r}")
    later = b.op("Greater", _scalar(b, 1), b.like(node.input[2], 0))
    beta = b.op("Where", later, b.like(node.input[2], b.given["beta"]), b.like(node.input[2], 1))

    def step(b: Builder, x: str, gradient: str, momentum: str) -> Sequence[str]:
        gradient = _regular(b, x, gradient)
        momentum = b.op("Add", _scaled(b, momentum, alpha), b.op("Mul", beta, gradient))
        move = momentum if mode == "standard" else b.op("Add", gradient, _scaled(b, momentum, alpha))
        return b.op("Sub", x, b.op("Mul", rate, move)), momentum

    return _each(b, 3, step)


@rewrites("Adagrad", domain=_DOMAIN)
def _adagrad(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    if not _known(b):
        return None
    one = b.like(node.input[2], 1)
    rate = b.op("Div", _scalar(b, 0), b.op("Add", one, _scaled(b, _scalar(b, 1), b.given.get("decay_factor", 0.0))))

    def step(b: Builder, x: str, gradient: str, squares: str) -> Sequence[str]:
        gradient = _regular(b, x, gradient)
        squares = b.op("Add", squares, b.op("Mul", gradient, gradient))
        adaptive = b.op("Add", b.op("Sqrt", squares), b.like(node.input[2], b.given.get("epsilon", 1e-6)))
        return b.op("Sub", x, b.op("Div", b.op("Mul", rate, gradient), adaptive)), squares

    return _each(b, 3, step)


@rewrites("Adam", domain=_DOMAIN)
def _adam(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """ONNX's formula: the rate makes up for means that began with 0, but not in step 0."""
    if not _known(b):
        return None
    rate, steps = _scalar(b, 0), _scalar(b, 1)
    alpha, beta = b.given.get("alpha", 0.9), b.given.get("beta", 0.999)
    left = [
        b.op("Sub", b.like(node.input[2], 1), b.op("Pow", b.like(node.input[2], each), steps)) for each in (alpha, beta)
    ]
    later = b.op("Greater", steps, b.like(node.input[2], 0))
    rate = b.op("Where", later, b.op("Div", b.op("Mul", rate, b.op("Sqrt", left[1])), left[0]), rate)

    def step(b: Builder, x: str, gradient: str, mean: str, squares: str) -> Sequence[str]:
        gradient = _regular(b, x, gradient)
        mean = b.op("Add", _scaled(b, mean, alpha), _scaled(b, gradient, 1 - alpha))
        squares = b.op("Add", _scaled(b, squares, beta), _scaled(b, b.op("Mul", gradient, gradient), 1 - beta))
        root = b.op("Add", b.op("Sqrt", squares), b.like(node.input[2], b.given.get("epsilon", 1e-6)))
        y = b.op("Sub", x, b.op("Div", b.op("Mul", rate, mean), root))
        after = b.given.get("norm_coefficient_post", 0.0)
        return _scaled(b, y, 1 - after) if after else y, mean, squares

    return _each(b, 4, step)
