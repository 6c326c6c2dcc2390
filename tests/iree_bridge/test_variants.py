"""Which flags a graph is compiled with on top of its target's, and what follows where the compiler fails."""

from __future__ import annotations

import json

import pytest

from fusilli_plugin.checks.selftest import GRAPHS
from graph_api import DataType, Graph, PointwiseMode, ReductionMode, ResampleMode
from iree_bridge import Target
from iree_bridge.compile.compiler import compile_code
from iree_bridge.targets.target import known_targets
from iree_bridge.targets.variants import FUSED_PADDING, choose, variants
from tests.cases import all_cases

CUDA = Target.parse("sm_80")
GFX942 = Target.parse("gfx942")
TENSOR_CORES = (b"mma.sync", b"wmma.")


@pytest.mark.a_few("conv 3x3+bias+ReLU HALF")
@pytest.mark.parametrize("name", ["conv 1x1+bias+ReLU HALF", "conv 3x3+bias+ReLU HALF", "batched products BFLOAT16"])
@pytest.mark.iree_cpu
def test_code_for_cuda_has_no_tensor_core_instructions(name: str) -> None:
    """With them float16 layers were wrong on a real GPU."""
    code = compile_code(GRAPHS[name](), CUDA).vmfb
    assert b".target sm_80" in code
    assert not [word for word in TENSOR_CORES if word in code]


@pytest.mark.iree_cpu
def test_attention_for_cuda_needs_one_of_the_pipelines() -> None:
    graph = GRAPHS["causal attention HALF"]()
    assert "--iree-codegen-llvmgpu-use-vector-distribution=false" not in choose(graph, CUDA).flags
    assert b".target sm_80" in compile_code(graph, CUDA).vmfb


@pytest.mark.a_few("5-128", "16-64")
@pytest.mark.parametrize(("queries", "head"), [(2, 64), (5, 128), (17, 64), (49, 64), (16, 64), (33, 96)])
@pytest.mark.iree_cpu
def test_attention_of_one_head_compiles_for_cuda(queries: int, head: int) -> None:
    """In 16 bits the compiler does not distribute queries that 16 does not divide."""
    graph = Graph("attention", io_data_type=DataType.HALF)
    tensors = [graph.tensor(name, dim=(1, 1, rows, head)) for name, rows in (("q", queries), ("k", 8), ("v", 8))]
    graph.sdpa(*tensors, attn_scale=0.1)[0].set_output(True)
    assert b".target sm_80" in compile_code(graph, CUDA).vmfb


@pytest.mark.iree_cpu
def test_attention_that_cuda_cannot_fuse_is_made_node_by_node() -> None:
    """17 queries of two heads that share 197 keys: "restricted to workgroup distributed contexts" in one kernel."""
    graph = Graph("attention", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    q = graph.tensor("q", dim=(1, 2, 17, 128))
    k, v = (graph.tensor(name, dim=(1, 1, 197, 128)) for name in "kv")
    graph.sdpa(q, k, v, attn_scale=0.125)[0].set_output(True)
    assert compile_code(graph.validate(), CUDA).form == "node by node"


def test_a_sum_of_negated_numbers_compiles_for_cuda() -> None:
    graph = Graph("sum", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x = graph.pointwise(PointwiseMode.NEG, graph.tensor("x", dim=(33, 5, 64)))
    graph.reduction(x, mode=ReductionMode.AVG).set_dim((33, 5, 1)).set_output(True)
    assert b".target sm_80" in compile_code(graph, CUDA).vmfb


@pytest.mark.thorough
@pytest.mark.iree_cpu
def test_a_pool_of_a_maximum_compiles_for_cuda() -> None:
    """seed 3131002236 of `fusilli fuzz`: "restricted to workgroup distributed contexts" in all other forms."""
    graph = Graph("pool", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    most = graph.reduction(graph.tensor("x", dim=(2, 2, 2, 1)), mode=ReductionMode.MAX).set_dim((1, 1, 2, 1))
    graph.resample_fwd(most, mode=ResampleMode.MAXPOOL, window=(1, 1), stride=(2, 2))[0].set_output(True)
    assert b".target sm_80" in compile_code(graph, CUDA).vmfb


@pytest.mark.parametrize("name", ["cpu", "gfx942", "sm_80"])
@pytest.mark.parametrize(("window", "stride", "kept"), [(1, 2, True), (1, 1, False), (2, 2, False)])
def test_the_last_form_of_what_is_read_in_strides_joins_no_reader(
    window: int, stride: int, kept: bool, name: str
) -> None:
    none, steps = (0, 0), (1, stride)
    pool = Graph("pool", io_data_type=DataType.FLOAT)
    x = pool.tensor("x", dim=(1, 2, 6, 6))
    over = pool.resample_fwd(
        x, mode=ResampleMode.MAXPOOL, window=(1, window), stride=steps, pre_padding=none, post_padding=none
    )
    over[0].set_output(True)
    points = Graph("points", io_data_type=DataType.FLOAT)
    x, w = points.tensor("x", dim=(1, 2, 6, 6)), points.tensor("w", dim=(2, 2, 1, window))
    points.conv_fprop(x, w, stride=steps, pre_padding=none, post_padding=none).set_output(True)
    flag = "--iree-dispatch-creation-fuse-multi-use=false"
    for graph in (pool, points):
        forms = variants(graph.validate(), Target.parse(name))
        names = [form.name for form in forms]
        assert [form.name for form in forms if flag in form.flags] == ["one reader"] * kept
        behind = names[names.index("one reader") + 1 :] if kept else names[-1:]
        assert behind in (["node by node"], ["fused less", "node by node"])


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "gfx950"])
def test_a_reduction_gives_no_form_that_is_wrong_for_what_stands_beside_it(name: str) -> None:
    for _, case in all_cases():
        alone = case.graph()
        text = json.loads(alone.to_json())
        text["tensors"] += [
            {"uid": 10**6 + n, "name": f"beside{n}", "data_type": "FLOAT", "dims": dims, "strides": [dims[1], 1]}
            for n, dims in enumerate(([2, 3], [1, 1]))
        ]
        text["nodes"].append({
            "op": "reduction", "name": "beside", "compute_data_type": "FLOAT",
            "inputs": {"x": 10**6}, "outputs": {"y": 10**6 + 1}, "attributes": {"mode": "NORM2"},
        })  # fmt: skip
        with_one = Graph.from_json(json.dumps(text))
        target = Target.parse(name)
        tiled = "--iree-codegen-llvmgpu-use-tile-and-fuse-matmul=false"
        before, after = (variants(graph, target) for graph in (alone, with_one))
        if all(tiled in form.flags for form in before):
            assert all(tiled in form.flags for form in after), (case, [form.name for form in after])


def test_loads_always_go_through_buffer_instructions() -> None:
    """Without them the tail of a tile is not masked: what lies behind a tensor is multiplied with zero."""
    for _, case in all_cases():
        for target in ("gfx90a", "gfx942", "gfx950"):
            for variant in variants(case.graph(), Target.parse(target)):
                assert not [flag for flag in variant.flags if "buffer-instr" in flag]


@pytest.mark.thorough
def test_a_variant_is_known_by_its_name() -> None:
    for target in map(Target.parse, known_targets()):
        for make in GRAPHS.values():
            names = [variant.name for variant in variants(make(), target)]
            assert names
            assert len(names) == len(set(names))
            assert choose(make(), target).name == names[0]


def convolution(kind: str, x: tuple[int, ...], w: tuple[int, ...], **options: int) -> Graph:
    graph = Graph(kind, io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    padding, stride = options.get("padding", 0), options.get("stride", 1)
    size = [(x[i] + 2 * padding - w[i]) // stride + 1 for i in (2, 3)]
    dims = {"x": x, "w": w, "dy": (x[0], w[0], *size)}
    used = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}[kind]
    tensors = [graph.tensor(name, dim=dims[name]) for name in used]
    add = {"fprop": graph.conv_fprop, "dgrad": graph.conv_dgrad, "wgrad": graph.conv_wgrad}[kind]
    out = add(*tensors, padding=padding, stride=stride).set_output(True)
    if kind != "fprop":
        out.set_dim(x if kind == "dgrad" else w)
    return graph.validate()


@pytest.mark.parametrize(
    ("kind", "x", "w", "options", "is_fused"),
    [
        ("fprop", (1, 16, 8, 8), (16, 16, 3, 3), {"padding": 1}, True),
        ("fprop", (1, 16, 8, 8), (16, 16, 3, 3), {}, False),
        ("fprop", (1, 16, 8, 8), (16, 16, 1, 1), {"padding": 1}, False),
        ("fprop", (3, 8, 1, 1), (5, 8, 3, 3), {"padding": 1}, False),
        ("dgrad", (1, 16, 8, 8), (16, 16, 3, 3), {}, True),
        ("dgrad", (1, 16, 8, 8), (16, 16, 1, 1), {}, False),
        ("dgrad", (1, 16, 9, 9), (16, 16, 2, 2), {"stride": 3}, False),  # rows of dx that nothing meets
        ("wgrad", (1, 16, 8, 8), (16, 16, 3, 3), {"padding": 1}, True),
        ("wgrad", (1, 16, 8, 8), (16, 16, 1, 1), {"padding": 1}, False),
    ],
)
def test_padding_is_fused_where_a_kernel_takes_it_in(
    kind: str, x: tuple[int, ...], w: tuple[int, ...], options: dict[str, int], is_fused: bool
) -> None:
    found = variants(convolution(kind, x, w, **options), GFX942)
    assert (FUSED_PADDING in found[0].flags) is is_fused
    assert not [variant for variant in found[1:] if FUSED_PADDING in variant.flags]


def test_pools_are_padded_by_themselves() -> None:
    graph = Graph("pool", io_data_type=DataType.FLOAT)
    y = graph.conv_fprop(graph.tensor(dim=(1, 4, 8, 8)), graph.tensor(dim=(4, 4, 3, 3)), padding=1)
    graph.resample_fwd(y, mode=ResampleMode.MAXPOOL, window=(3, 3), stride=(2, 2), padding=(1, 1))[0].set_output(True)
    assert not [variant for variant in variants(graph.validate(), GFX942) if FUSED_PADDING in variant.flags]


@pytest.mark.parametrize(
    ("a", "b", "dtype", "target", "first"),
    [
        ((8, 256), (256, 32), DataType.HALF, "gfx950", "no product tiles"),
        ((2, 128), (128, 1024), DataType.BFLOAT16, "gfx90a", "no product tiles"),
        ((4, 2, 256), (1, 256, 32), DataType.HALF, "mi355x", "no product tiles"),  # 8 rows
        ((4, 3, 256), (1, 256, 32), DataType.HALF, "gfx950", "plain"),  # 12 rows
        ((8, 256), (256, 32), DataType.HALF, "gfx942", "plain"),
        ((8, 256), (256, 32), DataType.FLOAT, "gfx950", "plain"),
        ((1, 256), (256, 32), DataType.HALF, "gfx950", "plain"),
        ((8, 192), (192, 32), DataType.HALF, "gfx950", "plain"),
    ],
)
def test_products_of_few_rows(a: tuple[int, ...], b: tuple[int, ...], dtype: DataType, target: str, first: str) -> None:
    graph = Graph("product", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    graph.matmul(graph.tensor(dim=a), graph.tensor(dim=b)).set_output(True)
    assert choose(graph.validate(), Target.parse(target)).name == first


@pytest.mark.a_few("(8, 64, 28, 28)-NHWC-True", "(64, 3, 224, 224)-NCHW-False")
@pytest.mark.parametrize(
    ("dims", "layout", "whole"),
    [
        ((8, 64, 28, 28), "NCHW", True),
        ((8, 64, 28, 28), "NHWC", True),
        ((2, 3, 16, 16), "NCHW", True),
        ((64, 3, 224, 224), "NCHW", False),
    ],
    ids=str,
)
def test_sums_of_a_batchnorm_are_split_where_few_channels_would_leave_a_chip_idle(
    dims: tuple[int, ...], layout: str, whole: bool
) -> None:
    g = Graph("g", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    operands = [g.tensor(name, dim=(1, dims[1], 1, 1), data_type=DataType.FLOAT) for name in ("scale", "bias")]
    g.batchnorm(g.tensor("x", dim=dims, layout=layout), *operands, epsilon=1e-5)[0].set_output(True)
    target = Target.parse("gfx942")
    flag = "--iree-dispatch-creation-enable-split-reduction=false"
    assert (flag in choose(g.validate(), target).flags) == whole
    if whole:
        assert compile_code(g, target).dispatches == 2
