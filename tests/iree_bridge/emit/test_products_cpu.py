"""Matrix products on the CPU: which form each takes, that every tile compiles, and what they compute."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode, numerics
from iree_bridge import build
from iree_bridge.api import compile_graph
from iree_bridge.compile.compiler import compile_code
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.cpu import host_arch
from iree_bridge.targets.target import Target, known_targets
from iree_bridge.targets.variants import choose
from tests.cases.matmul import graph as matmul_graph
from tests.support.cases import aligned
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

D = DataType
if host_arch() != "x86_64":
    pytest.skip("the compiler knows the processors of its own architecture", allow_module_level=True)

AVX2, AVX512 = Target.parse("cpu:x86-64-v3"), Target.parse("cpu:x86-64-v4")


def product(m: int, k: int, n: int, dtype: DataType = D.FLOAT, *, lead: tuple[int, ...] = (), across: bool) -> Graph:
    """[lead, m, k] times [lead, k, n], whose columns lie one after the other if ``across``."""
    strides = None
    if across:
        flat = np.empty((*lead, n, k), np.int8).swapaxes(-1, -2)
        strides = flat.strides
    return matmul_graph((*lead, m, k), (*lead, k, n), dtype, strides=(None, strides, None)).validate()


@pytest.mark.parametrize(
    ("m", "n", "dtype", "across", "form"),
    [
        (64, 96, D.FLOAT, False, "columns"),
        (2, 96, D.FLOAT, False, "columns"),
        (1, 96, D.FLOAT, False, "row"),
        (64, 7, D.FLOAT, False, "torch"),
        (64, 96, D.FLOAT, True, "panels"),
        (31, 96, D.FLOAT, True, "torch"),
        (64, 96, D.HALF, False, "columns"),
        (31, 96, D.BFLOAT16, False, "torch"),
        (1, 96, D.HALF, False, "torch"),
        (64, 96, D.HALF, True, "panels"),
        (63, 1024, D.FLOAT, False, "columns"),
        (64, 1024, D.FLOAT, False, "panels"),  # rows 4096 bytes apart take each other's places in the cache
        (64, 3072, D.HALF, False, "panels"),
        (64, 1040, D.FLOAT, False, "columns"),
        (255, 96, D.FLOAT, False, "columns"),
        (256, 96, D.FLOAT, False, "panels"),  # so many rows pay for the copy
        (160, 96, D.FLOAT, False, "columns"),
        (256, 100, D.FLOAT, False, "columns"),
        (64, 96, D.DOUBLE, False, "torch"),
        (64, 96, D.INT8, False, "torch"),
    ],
)
def test_the_form_follows_from_sizes_and_order(m: int, n: int, dtype: DataType, across: bool, form: str) -> None:
    ir = emit_module(
        matmul_graph(
            (m, 64), (64, n), dtype, None, D.INT32 if dtype is D.INT8 else None,
            strides=(None, (1, 64) if across else None, None),
        ).validate(),
        AVX2,
    ).ir  # fmt: skip
    if form == "torch":
        assert "torch.aten.mm" in ir
        return
    operands = {
        "columns": rf"tensor<{m}x64xf32>, tensor<64x{n}xf32>",
        "row": rf"tensor<64xf32>, tensor<64x{n}xf32>",
        "panels": rf"tensor<{m}x64xf32>, tensor<{n // 16}x64x16xf32>",
    }
    check_ir(ir, f"CHECK: call @product_{{{{[0-9]+}}}}({{{{.*}}}}) : ({operands[form]})")
    assert "torch.aten.mm" not in ir


def test_wide_vectors_make_larger_tiles() -> None:
    for target, kernel in ((AVX2, "[4, 16, 0]"), (AVX512, "[8, 32, 0]"), (Target.parse("cpu:x86-64-v2"), "[4, 8, 0]")):
        check_ir(emit_module(product(64, 64, 96, across=False), target).ir, f"CHECK: vector_common_parallel = {kernel}")


def test_every_cpu_has_a_size_of_vectors() -> None:
    sizes = {name: Target.parse(name).vector_bytes for name in known_targets() if name.startswith("cpu")}
    assert sizes.pop("cpu") in (16, 32, 64)
    expected = {"nehalem": 16, "haswell": 32, "alderlake": 32, "znver3": 32, "znver4": 64, "skylake-avx512": 64}
    assert {name: sizes[f"cpu:{name}"] for name in expected} == expected


_SIZES = [
    (65, 17, 1024),
    (257, 33, 48),
    (197, 40, 768),
    (250, 40, 250),
    (199, 20, 200),
    (130, 9, 1000),
    (1, 77, 513),
    (64, 300, 512),
    (33, 5, 10),
]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("sizes", _SIZES)
def test_every_tile_compiles(sizes: tuple[int, int, int], across: bool, target: str) -> None:
    """The compiler refuses tiles above some multiple of a vector's size."""
    compile_graph(product(*sizes, across=across), [Target.parse(target)])


@pytest.mark.a_few("33x5x10-False", "1x77x513-True", "batch of rows-False", "197x40x768-True")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(
    ("sizes", "lead", "dtype"),
    [
        *(pytest.param(sizes, (), D.FLOAT, id="x".join(map(str, sizes))) for sizes in _SIZES),
        pytest.param((49, 33, 72), (2, 3), D.FLOAT, id="batch"),
        pytest.param((1, 33, 72), (3,), D.FLOAT, id="batch of rows"),
        pytest.param((70, 9, 1024), (2, 2), D.FLOAT, id="batch whose rows are copied"),
        pytest.param((66, 9, 1024), (), D.BFLOAT16, id="bfloat16 that is copied"),
        pytest.param((40, 33, 9), (3,), D.FLOAT, id="batch of few columns"),
        pytest.param((40, 33, 50), (2,), D.HALF, id="half"),
        pytest.param((40, 33, 50), (), D.BFLOAT16, id="bfloat16"),
    ],
)
def test_products_are_right(sizes: tuple[int, int, int], lead: tuple[int, ...], dtype: DataType, across: bool) -> None:
    """Integers up to 8 in f32 are summed without rounding, so the result is exact; halves are rounded once."""
    graph = product(*sizes, dtype, lead=lead, across=across)
    a, b = graph.arguments().inputs
    (c,) = graph.arguments().outputs
    rng = np.random.default_rng(0)
    pack: dict[Any, Any] = {}
    for tensor in (a, b):
        array = tensor.empty()
        array[...] = rng.integers(-8, 9, tensor.dims)
        pack[tensor] = aligned(array)
    result = aligned(c.empty())
    build(graph, "cpu").run({**pack, c: result})
    exact = pack[a].astype(np.float64) @ pack[b].astype(np.float64)
    np.testing.assert_array_equal(result, exact.astype(c.data_type.numpy))


def test_sums_of_many_terms_pay_for_the_copy_sooner() -> None:
    """Rows of the second factor lie on as many pages as there are terms; measured for AVX2."""
    sse = Target.parse("cpu:x86-64-v2")
    for target, rows, terms, operand in (
        (AVX2, 160, 64, "tensor<64x96xf32>"),
        (AVX2, 160, 384, "tensor<6x384x16xf32>"),
        (sse, 160, 384, "tensor<384x96xf32>"),
        (sse, 256, 384, "tensor<12x384x8xf32>"),
    ):
        ir = emit_module(product(rows, terms, 96, across=False), target).ir
        check_ir(ir, f"CHECK: call @product_{{{{[0-9]+}}}}({{{{.*}}}}) : (tensor<{rows}x{terms}xf32>, {operand})")


@pytest.mark.parametrize(
    ("sizes", "target", "is_paged"),
    [
        ((16, 64, 2048), AVX2, True),
        ((16, 64, 2080), AVX2, False),
        ((16, 64, 1024), AVX2, False),  # slower so
        ((7, 64, 2048), AVX2, False),
        ((16, 64, 2048), AVX512, False),
    ],
)
def test_rows_that_take_each_others_places_in_the_cache(
    sizes: tuple[int, int, int], target: Target, is_paged: bool
) -> None:
    ir = emit_module(product(*sizes, across=False), target).ir
    assert ("cache_reduction = [0, 0, 16]" in ir and ", 128, 0]" in ir) == is_paged


@pytest.mark.parametrize(
    ("sizes", "lead", "tile"),
    [
        ((197, 197, 64), (16,), "[1, 197, 32, 0]"),  # what is left behind a tile is done in scalars
        ((192, 192, 64), (16,), "[1, 64, 32, 0]"),
        ((197, 40, 64), (), "[28, 32, 0]"),  # one tile would be all, and one thread have all the work
        ((577, 40, 64), (12,), "[1, 64, 2, 16, 0]"),  # in panels
    ],
)
def test_tiles_leave_little_or_nothing_behind(sizes: tuple[int, int, int], lead: tuple[int, ...], tile: str) -> None:
    ir = emit_module(product(*sizes, lead=lead, across=False), AVX2).ir
    assert f"distribution = {tile}" in ir


def _drawn(seed: int) -> tuple[Graph, Target]:
    """A product of sizes near multiples of tiles' and vectors', and perhaps something behind it."""
    draw = random.Random(seed)
    near = [n + more for n in (16, 32, 48, 64, 96, 128, 160, 192, 256, 320) for more in (-1, 0, 1, 5)]
    m, k, n = (draw.choice((*near, draw.randint(1, 300))) for _ in range(3))
    lead = draw.choice(((), (), (2,), (3, 2)))
    graph = Graph("drawn", io_data_type=draw.choice((D.FLOAT, D.FLOAT, D.HALF)), compute_data_type=D.FLOAT)
    strides = (*np.empty((*lead, n, k), np.int8).swapaxes(-1, -2).strides,) if draw.random() < 0.4 else None
    y = graph.matmul(graph.tensor(dim=(*lead, m, k)), graph.tensor(dim=(*lead, k, n), stride=strides))
    for _ in range(draw.randint(0, 2)):
        mode = draw.choice((PointwiseMode.ADD, PointwiseMode.GELU_FWD, PointwiseMode.RELU_FWD))
        y = graph.pointwise(mode, y, *(graph.tensor(dim=(*lead, m, n)) for _ in range(mode is PointwiseMode.ADD)))
    y.set_output(True)
    return graph.validate(), Target.parse(draw.choice(("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")))


@pytest.mark.a_few("2", "5")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("seed", range(40))
def test_products_of_drawn_sizes(seed: int) -> None:
    """In the first form: of larger tiles than fit, with what follows them, the compiler refuses it."""
    graph, target = _drawn(seed)
    assert compile_code(graph, target).form == choose(graph, target).name
    artifact = compile_graph(graph, [target])
    if next(iter(artifact.codes.values())).missing():
        pytest.skip("this machine lacks its vectors")
    inputs = graph.random_inputs(seed=seed)
    results = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    artifact.on("cpu").run({**inputs, **results})
    for comparison in numerics.check(graph, inputs, results):
        assert comparison.ok, str(comparison)


@pytest.mark.thorough
@pytest.mark.iree_cpu
def test_kernels_run_on_the_stacks_of_worker_threads() -> None:
    """Whole tiles lie on the stack beside what follows; two at once are run by workers, whose stacks were too small."""
    graph = Graph("two", io_data_type=D.FLOAT, compute_data_type=D.FLOAT)
    for _ in range(2):
        a, b = graph.tensor(dim=(97, 97)), graph.tensor(dim=(97, 97))
        graph.pointwise(PointwiseMode.GELU_FWD, graph.matmul(a, b)).set_output(True)
    graph.validate()
    inputs = graph.random_inputs(seed=0)
    results = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    build(graph, "cpu-task").run({**inputs, **results})
    for comparison in numerics.check(graph, inputs, results):
        assert comparison.ok, str(comparison)
