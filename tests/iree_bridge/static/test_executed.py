"""Forms that static figures may choose: each is executed in the emulator on even and ragged sizes of its class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fusilli_plugin.emulator import Emulator
from fusilli_plugin.emulator.program import Assembled
from graph_api import DataType, Graph, PointwiseMode, TensorAttr
from iree_bridge import Target
from iree_bridge.compile.compiler import compile_assembly
from iree_bridge.targets.executed import EXECUTED, GraphClass, class_of, was_executed
from iree_bridge.targets.variants import variants

GFX942 = Target.parse("gfx942")
PRODUCTS = {"even": (128, 96, 192), "ragged": (67, 45, 131), "short": (5, 130, 9)}
IMAGES = {
    "even": ((2, 32, 12, 16), 64, 3, 1), "ragged": ((3, 19, 7, 9), 21, 3, 1), "strided": ((1, 24, 9, 12), 17, 3, 2),
    "points": ((2, 32, 8, 8), 48, 1, 1), "ragged points": ((2, 13, 7, 7), 37, 1, 1),
}  # fmt: skip


def matrix(g: Graph, name: str, dims: tuple[int, ...], order: str) -> TensorAttr:
    return g.tensor(name, dim=dims, stride=(1, dims[0]) if order == "c" else None)


def followed(g: Graph, y: TensorAttr, bias: tuple[int, ...], *, by_more: bool) -> Graph:
    if by_more:
        y = g.pointwise(PointwiseMode.ADD, y, g.tensor("bias", dim=bias))
        y = g.pointwise(PointwiseMode.RELU_FWD, y)
    y.set_output(True)
    return g.validate()


def build(kind: GraphClass, size: str, *, by_more: bool) -> Graph:
    g = Graph("executed", io_data_type=kind.dtype, compute_data_type=DataType.FLOAT)
    if kind.op == "matmul":
        m, k, n = PRODUCTS[size]
        y = g.matmul(matrix(g, "a", (m, k), kind.order[0]), matrix(g, "b", (k, n), kind.order[1]))
        return followed(g, y, (1, n), by_more=by_more)
    x, filters, window, stride = IMAGES[size]
    image = g.tensor("x", dim=x, layout=kind.order)
    weight = g.tensor("w", dim=(filters, x[1], window, window), layout=kind.order)
    y = g.conv_fprop(image, weight, padding=window // 2, stride=stride)
    return followed(g, y, (1, filters, 1, 1), by_more=by_more)


def cases() -> Iterator[Any]:
    """Each form of the table on each size to which it applies; one without ``slow``."""
    quick = {("matmul", "rr", "no product tiles", "ragged")}
    for kind, forms in EXECUTED.items():
        for form in forms:
            for number, size in enumerate(PRODUCTS if kind.op == "matmul" else IMAGES):
                key = (kind.op, kind.order, form, size)
                marks = () if key in quick and kind.dtype is DataType.HALF else (pytest.mark.slow,)
                name = f"{kind.op}-{kind.dtype.name}-{kind.order}-{form}-{size}"
                yield pytest.param(kind, form, size, bool(number % 2), id=name, marks=marks)


@pytest.mark.mlir
@pytest.mark.parametrize(("kind", "form", "size", "by_more"), list(cases()))
def test_right_in_the_emulator(kind: GraphClass, form: str, size: str, by_more: bool) -> None:
    target = Target.parse(kind.chip)
    graph = build(kind, size, by_more=by_more)
    assert class_of(graph, target) == kind
    if form not in [variant.name for variant in variants(graph, target)]:
        pytest.skip("the form does not apply to this size, so nothing chooses it")
    code, text = compile_assembly(graph, target, form=form)
    assert code.form == form
    outcome = Emulator(target).examine(graph, code=Assembled(code.vmfb, text, code.flags, code.dispatches))
    assert outcome.ok, f"{outcome.verdict}: {outcome.text}"


def test_every_form_applies_to_an_even_and_a_ragged_size() -> None:
    """So none stands in the table without having been executed."""
    for kind, forms in EXECUTED.items():
        sizes = PRODUCTS if kind.op == "matmul" else IMAGES
        for wanted in ({"even", "points"}, {"ragged", "ragged points"}):
            graphs = [build(kind, size, by_more=False) for size in sizes if size in wanted]
            applied = {variant.name for graph in graphs for variant in variants(graph, Target.parse(kind.chip))}
            assert set(forms) <= applied, kind


def test_what_is_like_nothing_that_was_executed_has_no_class() -> None:
    kind = GraphClass("gfx942", "matmul", DataType.HALF, "rr")
    graph = build(kind, "even", by_more=True)
    assert was_executed(graph, GFX942, "no product tiles")
    assert not was_executed(graph, GFX942, "loops")
    assert not was_executed(graph, Target.parse("gfx950"), "no product tiles")

    def product(a: dict[str, Any], b: dict[str, Any], **more: Any) -> Graph:
        g = Graph("other", **{"io_data_type": DataType.HALF, "compute_data_type": DataType.FLOAT} | more)
        g.matmul(g.tensor("a", **a), g.tensor("b", **b)).set_output(True)
        return g.validate()

    gaps = product({"dim": (64, 32), "stride": (40, 1)}, {"dim": (32, 64)})
    batch = product({"dim": (4, 64, 32)}, {"dim": (1, 32, 64)})
    wide = product({"dim": (64, 32)}, {"dim": (32, 64)}, io_data_type=DataType.FLOAT)
    assert class_of(gaps, GFX942) is class_of(batch, GFX942) is None
    assert not was_executed(wide, GFX942, "no product tiles")

    def convolution(x: tuple[int, ...], w: tuple[int, ...], layouts: tuple[str, str], **options: Any) -> Graph:
        g = Graph("other", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
        image, weight = (g.tensor(n, dim=d, layout=at) for n, d, at in (("x", x, layouts[0]), ("w", w, layouts[1])))
        g.conv_fprop(image, weight, **options).set_output(True)
        return g.validate()

    alike = ("NHWC", "NHWC")
    assert class_of(convolution((2, 8, 9, 9), (8, 8, 3, 3), alike), GFX942) is not None
    assert class_of(convolution((2, 8, 9, 9), (8, 4, 3, 3), alike), GFX942) is None  # groups
    assert class_of(convolution((2, 8, 9, 9), (8, 8, 3, 3), alike, dilation=2), GFX942) is None
    assert class_of(convolution((2, 8, 9, 9), (8, 8, 3, 3), ("NHWC", "NCHW")), GFX942) is None
