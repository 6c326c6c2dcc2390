"""What takes elements of a tensor one by one, where that is a part of another one (`iree_bridge.emit.parts`)."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from fusilli_plugin.emulator import Emulator
from graph_api import CustomOpAttributes, DataType, Graph, ReductionMode, ResampleMode
from graph_api.layout import strides_in_order
from iree_bridge import build

_GATHER = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}, %places: {IN1_TYPE}) -> {OUT0_TYPE} {
  %axis = torch.constant.int 1
  %sparse = torch.constant.bool false
  %y = torch.aten.gather %x, %axis, %places, %sparse
    : {IN0_TYPE}, !torch.int, {IN1_TYPE}, !torch.bool -> {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
"""
_GATHER_OF_A_SLICE = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}, %places: {IN1_TYPE}) -> {OUT0_TYPE} {
  %axis = torch.constant.int 1
  %begin = torch.constant.int 1
  %end = torch.constant.int 4
  %sparse = torch.constant.bool false
  %part = torch.aten.slice.Tensor %x, %axis, %begin, %end, %axis
    : {IN0_TYPE}, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[4,3],f32>
  %y = torch.aten.gather %part, %axis, %places, %sparse
    : !torch.vtensor<[4,3],f32>, !torch.int, {IN1_TYPE}, !torch.bool -> {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
"""


def _with_gaps(dims: tuple[int, ...], order: tuple[int, ...], gaps: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in ``order``, with ``gaps`` more elements than there are along each dim."""
    return strides_in_order([size + gap for size, gap in zip(dims, gaps, strict=True)], order)


@pytest.mark.a_few("0", "3")
@pytest.mark.mlir
@pytest.mark.parametrize("seed", range(24))
def test_padded_pools_of_images_with_gaps_are_summed(seed: int) -> None:
    """Seed 941800011635: windows were read as if there were no gaps, once a sum took several of them."""
    draw = random.Random(seed)
    x_dims = draw.choice([1, 3, 5]), draw.randint(1, 5), draw.randint(3, 6)
    order = draw.choice(list(itertools.permutations(range(3))))
    g = Graph("pool", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=x_dims, stride=_with_gaps(x_dims, order, (0, draw.randint(0, 2), draw.randint(1, 2))))
    mode = draw.choice([ResampleMode.MAXPOOL, ResampleMode.AVGPOOL_INCLUDE_PADDING])
    y, _ = g.resample_fwd(x, mode=mode, window=(2,), stride=(2,), pre_padding=(0,), post_padding=(1,))
    g.reduction(y, mode=ReductionMode.ADD).set_output(True).set_dim((1, 1, (x_dims[2] - 1) // 2 + 1))
    pack = {x: x.empty()} if g.validate() else {}
    pack[x][...] = np.random.default_rng(seed).integers(0, 9, x_dims)
    (made,) = Emulator("gfx942").run(g, pack)[0].values()
    padded = np.pad(pack[x], [(0, 0), (0, 0), (0, 2)])[..., : x_dims[2] + 1]
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2, axis=2)[:, :, ::2]
    found = windows.max(axis=-1) if mode is ResampleMode.MAXPOOL else windows.mean(axis=-1)
    np.testing.assert_array_equal(made, found.sum(axis=(0, 1), keepdims=True))


@pytest.mark.a_few("gfx942-slice")
@pytest.mark.parametrize("kind", ["gaps", "slice"])
@pytest.mark.parametrize("place", ["gfx942", "cpu"])
def test_elements_that_a_custom_operation_gathers(place: str, kind: str) -> None:
    g = Graph("gather", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(4, 5), stride=(8, 1) if kind == "gaps" else (5, 1))
    places = g.tensor("places", dim=(4, 2), data_type=DataType.INT64)
    text = _GATHER if kind == "gaps" else _GATHER_OF_A_SLICE
    (y,) = g.custom_op([x, places], 1, CustomOpAttributes(custom_op_id=f"fusilli.{kind}", data=text))
    y.set_output(True).set_dim((4, 2))
    g.validate()
    pack = {x: x.empty(), places: places.empty()}
    pack[x][...] = np.arange(20).reshape(4, 5)
    pack[places][...] = [[0, 2], [1, 1], [2, 0], [2, 1]]
    source = pack[x] if kind == "gaps" else pack[x][:, 1:4]
    if place == "cpu":
        pack[y] = y.empty()
        build(g, "cpu").run(pack)
        made = pack[y]
    else:
        made = Emulator(place).run(g, pack)[0][y]
    np.testing.assert_array_equal(made, np.take_along_axis(source, pack[places], axis=1))
