"""Matrix products on the CPU: which form each takes, that every tile compiles, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode, numerics
from iree_bridge import build
from iree_bridge.api import compile_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.cpu import host_arch
from iree_bridge.targets.target import Target, known_targets
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
