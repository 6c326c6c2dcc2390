"""DFT and STFT as products with constant matrices: complex tensors cross no graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("DFT", static=(1, 2))
operator("STFT", static=(1, 2, 3))

_LONGEST = 1 << 12
"""Length up to which a product is made; the matrix of 4096 has 128 MiB in single precision."""


def _waves(taken: int, length: int, parts: int, *, inverse: bool, onesided: bool) -> np.ndarray:
    """``[taken * parts, results * parts of a result]``, in float64.

    Args:
        taken: elements that are read; those up to the length that are not there count as 0.
        length: of the transform.
        parts: 1 of a real tensor, 2 of a complex one.
        inverse: from frequencies.
        onesided: half of the frequencies, because the other side is real.
    """
    made = length // 2 + 1 if onesided and not inverse else length
    turns = np.outer(np.arange(taken), np.arange(made)) % length * (2 * np.pi / length)
    real, imaginary = np.cos(turns), np.sin(turns) if inverse else -np.sin(turns)
    if inverse:
        real, imaginary = real / length, imaginary / length
    if inverse and onesided:  # each frequency stands for its conjugate too, but the first and the middle one
        twice = np.where((np.arange(taken) * 2 % length) == 0, 1, 2)[:, None]
        rows = [real * twice, -imaginary * twice][:parts]
        return np.stack(rows, 1).reshape(taken * parts, made)
    rows = [np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)][:parts]
    return np.stack(rows, 1).reshape(taken * parts, made * 2)


def _summed(dtype: np.dtype) -> np.dtype:
    return dtype if dtype == np.float64 else np.dtype(np.float32)


def _number(b: Builder, index: int) -> int | None:
    """A scalar operand that is known."""
    value = b.value(b.input(index)) if b.input(index) else None
    return None if value is None or value.size != 1 else int(value.reshape(-1)[0])


@rewrites("DFT")
def _transform(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """A product with the matrix of waves: what is transformed is short, and products are what engines take."""
    dims, type_ = b.dims(node.input[0]), b.type(node.input[0])
    if dims is None or type_ is None or any(b.input(i) and _number(b, i) is None for i in (1, 2)):
        return None
    axis = _number(b, 2) if b.input(2) else b.given.get("axis", -2)
    inverse, onesided = bool(b.given.get("inverse", 0)), bool(b.given.get("onesided", 0))
    rank = len(dims)
    if (
        axis is None
        or axis % rank == rank - 1
        or dims[-1] not in (1, 2)
        or (onesided and not inverse and dims[-1] == 2)
    ):
        raise b.fail("dft", f"axis {axis} of {list(dims)}, onesided {int(onesided)}")
    axis %= rank
    length = _number(b, 1) or (2 * (dims[axis] - 1) if inverse and onesided else dims[axis])
    if not 1 <= length <= _LONGEST:
        raise b.unsupported("dft", f"a transform of {length} elements; up to {_LONGEST} are compiled")
    taken = min(dims[axis], length // 2 + 1 if inverse and onesided else length)
    dtype = _summed(type_.dtype)
    matrix = _waves(taken, length, dims[-1], inverse=inverse, onesided=onesided)
    x = node.input[0]
    if taken < dims[axis]:
        x = b.op("Slice", x, *(b.constant([number]) for number in (0, taken, axis)))
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    outer = [dims[i] for i in order[:-2]]
    rows = b.op("Reshape", b.op("Transpose", x, perm=order), b.constant([*outer, taken * dims[-1]]))
    made = b.op("MatMul", b.op("Cast", rows, to=_element(dtype)), b.constant(matrix, dtype))
    parts = 1 if inverse and onesided else 2
    y = b.op("Reshape", made, b.constant([*outer, matrix.shape[1] // parts, parts]))
    y = b.op("Transpose", y, perm=[order.index(i) for i in range(rank)])
    return [b.op("Cast", y, to=type_.element)]


@rewrites("STFT")
def _short_time(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Frames are gathered, weighted and transformed, all by one product."""
    dims, type_, step = b.dims(node.input[0]), b.type(node.input[0]), _number(b, 1)
    window = b.dims(b.input(2)) if b.input(2) else None
    if dims is None or type_ is None or step is None or (b.input(2) and window is None):
        return None
    length = _number(b, 3) or (window[0] if window else None)
    onesided, parts = bool(b.given.get("onesided", 1)), dims[2] if len(dims) == 3 else 1
    if len(dims) not in (2, 3) or length is None or step < 1 or not 1 <= length <= min(dims[1], _LONGEST):
        raise b.unsupported("stft", f"frames of {length} elements every {step} of {list(dims)}")
    if (window and window != (length,)) or parts not in (1, 2) or (onesided and parts == 2):
        raise b.fail("stft", f"a window of {window} for frames of {length} elements of {list(dims)}")
    frames, dtype = (dims[1] - length) // step + 1, _summed(type_.dtype)
    at = np.arange(frames)[:, None] * step + np.arange(length)
    x = b.op("Gather", b.op("Reshape", node.input[0], b.constant([dims[0], dims[1], parts])), b.constant(at), axis=1)
    x = b.op("Cast", x, to=_element(dtype))
    if b.input(2):
        weights = b.op("Reshape", b.op("Cast", b.input(2), to=_element(dtype)), b.constant([length, 1]))
        x = b.op("Mul", x, weights)
    matrix = _waves(length, length, parts, inverse=False, onesided=onesided)
    rows = b.op("Reshape", x, b.constant([dims[0], frames, length * parts]))
    y = b.op("Reshape", b.op("MatMul", rows, b.constant(matrix, dtype)), b.constant([dims[0], frames, -1, 2]))
    return [b.op("Cast", y, to=type_.element)]


def _element(dtype: np.dtype) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)
