"""Convolutions in all directions against PyTorch, per element."""

from __future__ import annotations

import pytest

from hipdnn_backend.offload.to_wire import NotTranslated
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder

pytestmark = pytest.mark.mlir


def ops(graph: object) -> list[str]:
    return [node.op for node in graph.nodes]  # type: ignore[attr-defined]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 2, 2), (3, 2, 1, 4)])
def test_convolution(rank: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    r = Recorder()
    x, w, bias = r.input(2, 4, *(7, 6, 5)[:rank]), r.input(8, 4 // groups, *(3, 2, 2)[:rank]), r.input(8)
    lists = ([stride] * rank, [padding] * rank, [dilation] * rank)
    y = r.op("convolution", x, w, bias, *lists, False, [0] * rank, groups)
    graph = r.check(r.op("relu", y))
    assert ops(graph) == ["conv_fprop", "pointwise", "pointwise"]


@pytest.mark.parametrize(
    ("stride", "padding", "output_padding", "dilation"), [(1, 0, 0, 1), (2, 1, 1, 1), (3, 2, 2, 2)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(stride: int, padding: int, output_padding: int, dilation: int, groups: int) -> None:
    r = Recorder()
    x, w, bias = r.input(2, 4, 5, 4), r.input(4, 3, 3, 2), r.input(3 * groups)
    lists = ([stride] * 2, [padding] * 2, [dilation] * 2)
    graph = r.check(r.op("convolution", x, w, bias, *lists, True, [output_padding] * 2, groups))
    assert ops(graph) == ["conv_dgrad", "pointwise"]


def test_transposed_rows_beyond_a_stride() -> None:
    """PyTorch allows output padding up to the dilation."""
    r = Recorder()
    x, w = r.input(1, 2, 5, 4), r.input(2, 3, 3, 2)
    r.check(r.op("convolution", x, w, None, [1, 1], [2, 2], [2, 2], True, [1, 1], 1))
    bad = Recorder()
    x, w = bad.input(1, 2, 5, 4), bad.input(2, 3, 3, 2)
    made = bad.op("convolution", x, w, None, [1, 1], [0, 0], [2, 2], True, [1, 1], 1)
    with pytest.raises(NotTranslated, match="output_padding"):
        bad.translate(made)


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d"])
@pytest.mark.parametrize("batched", [True, False])
def test_functional(name: str, batched: bool) -> None:
    r = Recorder()
    rank = int(name[4])
    x, w, bias = r.input(*(2,) * batched, 4, *(7, 6, 5)[:rank]), r.input(6, 2, *(3, 3, 1)[:rank]), r.input(6)
    r.check(r.op(name, x, w, bias, [2] * rank, [1] * rank, [1] * rank, 2))


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_word(padding: str) -> None:
    r = Recorder()
    r.check(r.op("conv2d.padding", r.input(1, 3, 7, 6), r.input(4, 3, 4, 3), None, [1, 1], padding, [1, 2], 1))


@pytest.mark.parametrize("name", ["conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"])
def test_functional_transposed(name: str) -> None:
    r = Recorder()
    rank = int(name[14])
    x, w, bias = r.input(2, 4, *(5, 4, 3)[:rank]), r.input(4, 3, *(3, 2, 2)[:rank]), r.input(3)
    r.check(r.op(name, x, w, bias, [2] * rank, [1] * rank, [1] * rank, 1, [1] * rank))


@pytest.mark.parametrize("name", ["pad", "constant_pad_nd"])
def test_a_frame_of_zeros_becomes_padding(name: str) -> None:
    r = Recorder()
    x, w = r.input(1, 2, 6, 5), r.input(3, 2, 3, 3)
    amounts = [0, 1, 2, 3]
    padded = r.op("pad", x, amounts, "constant", 0.0) if name == "pad" else r.op(name, x, amounts, 0)
    graph = r.check(r.op("convolution", padded, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1))
    assert (graph.nodes[0].attributes.pre_padding, graph.nodes[0].attributes.post_padding) == ((3, 1), (4, 2))  # type: ignore[attr-defined]


def test_other_frames_are_refused() -> None:
    for amounts, value in (([1, 1], 1.0), ([0, 0, 0, 0, 1, 0], 0.0)):
        r = Recorder()
        padded = r.op("constant_pad_nd", r.input(1, 1, 6, 5), amounts, value)
        w = r.input(3, padded.value.shape[1], 3, 3)
        made = r.op("convolution", padded, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, where="conv_7")
        with pytest.raises(NotTranslated, match="'conv_7': x is padded with"):
            r.translate(made)


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients(mask: list[bool], groups: int) -> None:
    r = Recorder()
    x, w = r.input(2, 4, 7, 6), r.input(6, 4 // groups, 3, 2)
    dy = r.input(2, 6, 4, 7)
    made = r.op("convolution_backward", dy, x, w, [6], [2, 1], [1, 1], [1, 1], False, [0, 0], groups, mask)
    kinds = {0: "conv_dgrad", 1: "conv_wgrad", 2: "reduction"}
    graph = r.check(*(result for result, want in zip(made, mask, strict=True) if want))
    assert ops(graph) == [kinds[index] for index, want in enumerate(mask) if want]


def test_convolution_of_an_epilogue() -> None:
    """conv, bias, batch norm, residual, activation: one graph."""
    r = Recorder()
    x, w, bias = r.input(2, 3, 6, 6), r.input(3, 3, 3, 3), r.input(3)
    scale, shift, mean, variance = r.input(3), r.input(3), r.input(3), r.input(3, positive=True)
    y = r.op("convolution", x, w, bias, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, where="conv")
    y = r.op("batch_norm", y, scale, shift, mean, variance, False, 0.1, 1e-5, True, where="norm")
    y = r.op("relu", r.op("add.Tensor", y, x, where="add"), where="act")
    graph = r.check(y)
    assert ops(graph) == ["conv_fprop", "pointwise", "batchnorm_inference_variance_ext", "pointwise", "pointwise"]
    assert sum(not tensor.is_virtual for tensor in graph.tensors if tensor.value is None) == 8
