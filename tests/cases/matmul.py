"""Matrix products: dtypes and mixtures, repeated batch dims, layouts, edge shapes, epilogues, models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph_api import DataType, Graph, PointwiseMode
from tests.cases import OpCase, Pack

D, M = DataType, PointwiseMode
Dims = tuple[int, ...]
_SHORT = {
    D.HALF: "f16",
    D.BFLOAT16: "bf16",
    D.FLOAT: "f32",
    D.DOUBLE: "f64",
    D.INT8: "i8",
    D.UINT8: "u8",
    D.INT4: "i4",
    D.INT32: "i32",
    D.INT64: "i64",
    D.BOOLEAN: "bool",
}


def graph(
    a: Dims,
    b: Dims,
    dtype: DataType = D.FLOAT,
    b_dtype: DataType | None = None,
    out: DataType | None = None,
    *,
    strides: tuple[Dims | None, Dims | None, Dims | None] = (None, None, None),
    compute: DataType | None = None,
    epilogue: Callable[[Graph, Any], Any] | None = None,
) -> Graph:
    """One product, with what ``epilogue`` makes of it."""
    g = Graph("matmul", io_data_type=out or dtype)
    left = g.tensor("a", dim=a, stride=strides[0], data_type=dtype)
    right = g.tensor("b", dim=b, stride=strides[1], data_type=b_dtype or dtype)
    y = g.matmul(left, right, compute_data_type=compute)
    y = y if epilogue is None else epilogue(g, y)
    y.set_output(True).set_name("c")
    if strides[2] is not None:
        y.set_stride(strides[2])
    return g


def _case(
    name: str,
    a: Dims,
    b: Dims,
    *types: Any,
    fast: bool = False,
    inputs: Any = None,
    dims: Dims | None = None,
    note: str = "",
    **options: Any,
) -> OpCase:
    return OpCase(name, lambda: graph(a, b, *types, **options), inputs, {"c": dims} if dims else None, fast, note=note)


def _full_range(g: Graph) -> Pack:
    """Integers over the whole range of their type, so that a sign that is read wrongly shows."""
    rng = np.random.default_rng(5)
    pack = g.random_inputs()
    for tensor, array in pack.items():
        if tensor.data_type in (D.INT8, D.UINT8, D.INT4):
            low, high = tensor.data_type.range
            array[...] = rng.integers(low, high + 1, array.shape).astype(array.dtype)
    return pack


def _least(g: Graph) -> Pack:
    """Every integer is the least of its type, the largest of all products."""
    pack = g.random_inputs()
    for tensor, array in pack.items():
        if tensor.data_type.is_integer:
            array[...] = np.full(array.shape, tensor.data_type.range[0]).astype(array.dtype)
    return pack


def _numbered(g: Graph) -> Pack:
    """Each element tells where it stands, so that a misplaced one shows."""
    pack = g.random_inputs()
    for array in pack.values():
        array[...] = (np.arange(array.size) % 1021).reshape(array.shape).astype(array.dtype) / 16
    return pack


def _cancelling(g: Graph) -> Pack:
    """The second half of K is the negative of the first, but for one element in each row: sums cancel to little."""
    pack = g.random_inputs()
    a, b = (pack[tensor] for tensor in g.arguments().inputs)
    half = a.shape[-1] // 2
    a[..., half : 2 * half] = -a[..., :half]
    b[..., half : 2 * half, :] = b[..., :half, :]
    a[..., 0] += a.dtype.type(0.125)
    return pack


def _type_cases() -> list[OpCase]:
    same = [
        _case(
            f"{_SHORT[t]}{'_batch' if batch else ''}",
            (*batch, 19, 33),
            (*batch, 33, 21),
            t,
            fast=t in (D.HALF, D.FLOAT) and not batch,
        )
        for t in (D.HALF, D.BFLOAT16, D.FLOAT, D.DOUBLE, D.INT32, D.INT64)
        for batch in ((), (3,))
    ]
    rows: list[tuple[DataType, DataType, DataType]] = [
        (D.HALF, D.HALF, D.FLOAT),
        (D.BFLOAT16, D.BFLOAT16, D.FLOAT),
        (D.HALF, D.BFLOAT16, D.FLOAT),
        (D.HALF, D.FLOAT, D.FLOAT),
        (D.FLOAT, D.BFLOAT16, D.FLOAT),
        (D.FLOAT, D.HALF, D.BFLOAT16),
        (D.DOUBLE, D.FLOAT, D.DOUBLE),
        (D.HALF, D.DOUBLE, D.FLOAT),
        (D.FLOAT, D.FLOAT, D.HALF),
        (D.INT8, D.HALF, D.HALF),
        (D.BFLOAT16, D.UINT8, D.BFLOAT16),
        (D.INT8, D.FLOAT, D.FLOAT),
        (D.INT32, D.HALF, D.FLOAT),
        (D.INT64, D.FLOAT, D.FLOAT),
        (D.INT64, D.INT32, D.INT64),
        (D.INT8, D.INT32, D.INT32),
        (D.BOOLEAN, D.FLOAT, D.FLOAT),
        (D.BOOLEAN, D.BOOLEAN, D.INT32),
        (D.BOOLEAN, D.INT8, D.INT32),
        (D.INT32, D.INT32, D.FLOAT),
    ]
    mixed = [
        _case(
            f"{_SHORT[a]}_{_SHORT[b]}_to_{_SHORT[c]}", (19, 33), (33, 21), a, b, c, fast=(a, b) == (D.HALF, D.BFLOAT16)
        )
        for a, b, c in rows
    ]
    bytes_ = [
        _case(
            f"{_SHORT[a]}_{_SHORT[b]}_to_{_SHORT[c]}_full_range{'_batch' if batch else ''}",
            (*batch, 19, 33),
            (*batch, 33, 21),
            a,
            b,
            c,
            inputs=_full_range,
            fast=a is b and c is D.INT32 and not batch,
            note="u8 products are computed as signed by the compiler unless they are widened first",
        )
        for a, b in ((D.INT8, D.INT8), (D.UINT8, D.UINT8), (D.UINT8, D.INT8), (D.INT8, D.UINT8))
        for c in (D.INT32, D.FLOAT)
        for batch in ((), (2,))
    ]
    computed = [
        _case(
            "f16_in_f64",
            (9, 33),
            (33, 7),
            D.HALF,
            None,
            D.DOUBLE,
            compute=D.DOUBLE,
            note="f16 operands with an f64 result are accumulated in f32 by the compiler unless widened",
        ),
        _case("f32_in_f64", (9, 33), (33, 7), D.FLOAT, None, D.FLOAT, compute=D.DOUBLE),
        _case("f64_in_f32", (9, 33), (33, 7), D.DOUBLE, None, D.FLOAT, compute=D.FLOAT),
        _case("i8_in_f32", (9, 33), (33, 7), D.INT8, None, D.FLOAT, compute=D.FLOAT, inputs=_full_range),
        _case("i8_in_i64", (9, 33), (33, 7), D.INT8, None, D.INT64, compute=D.INT64, inputs=_full_range),
        _case("i32_in_f32", (9, 33), (33, 7), D.INT32, None, D.FLOAT, compute=D.FLOAT),
    ]
    return [*same, *mixed, *bytes_, *computed]


def _nan_behind(g: Graph) -> Pack:
    """All but the first batch of b is NaN, which must not reach the first batch of the result."""
    pack = g.random_inputs()
    _, b = (pack[tensor] for tensor in g.arguments().inputs)
    b[1:] = np.nan
    return pack


def _batch_cases() -> list[OpCase]:
    rows: list[tuple[str, Dims, Dims, Dims]] = [
        ("b_shared", (4, 7, 9), (1, 9, 5), (4, 7, 5)),
        ("a_shared", (1, 7, 9), (4, 9, 5), (4, 7, 5)),
        ("b_divides", (6, 7, 9), (2, 9, 5), (6, 7, 5)),
        ("a_divides", (2, 7, 9), (6, 9, 5), (6, 7, 5)),
        ("gqa", (2, 6, 7, 9), (2, 3, 9, 5), (2, 6, 7, 5)),
        ("gqa_a", (2, 3, 7, 9), (2, 6, 9, 5), (2, 6, 7, 5)),
        ("outer_and_inner", (2, 6, 7, 9), (4, 3, 9, 5), (4, 6, 7, 5)),
        ("outer", (4, 1, 7, 9), (1, 6, 9, 5), (4, 6, 7, 5)),
        ("rank_5", (2, 3, 4, 7, 9), (2, 1, 2, 9, 5), (2, 3, 4, 7, 5)),
        ("rank_6_ones", (1, 2, 1, 3, 7, 9), (1, 1, 1, 3, 9, 5), (1, 2, 1, 3, 7, 5)),
        ("rank_4_x_rank_2", (2, 3, 8, 16), (1, 1, 16, 8), (2, 3, 8, 8)),
    ]
    cases = [
        _case(f"batch_{name}", a, b, dims=c, inputs=_numbered, fast=name in ("gqa", "gqa_a")) for name, a, b, c in rows
    ]
    half = [_case(f"batch_{name}_f16", a, b, D.HALF, dims=c) for name, a, b, c in rows[2:7]]
    apart = [
        _case(f"batch_nan_behind_{_SHORT[t]}", (3, 5, 9), (3, 9, 7), t, inputs=_nan_behind)
        for t in (D.HALF, D.BFLOAT16, D.FLOAT)
    ]
    return [*cases, *half, *apart]


def _layout_cases() -> list[OpCase]:
    return [
        _case("a_transposed", (17, 33), (33, 9), strides=((1, 17), None, None), inputs=_numbered, fast=True),
        _case("b_transposed", (17, 33), (33, 9), strides=(None, (1, 33), None), inputs=_numbered),
        _case("both_transposed_f16", (17, 33), (33, 9), D.HALF, strides=((1, 17), (1, 33), None)),
        _case("c_transposed", (17, 33), (33, 9), strides=(None, None, (1, 17)), inputs=_numbered, fast=True),
        _case("all_transposed_bf16", (17, 33), (33, 9), D.BFLOAT16, strides=((1, 17), (1, 33), (1, 17))),
        _case("batch_last", (2, 17, 33), (2, 33, 9), strides=((1, 66, 2), (1, 18, 2), (1, 18, 2)), inputs=_numbered),
        _case(
            "heads_inside",
            (2, 3, 7, 8),
            (2, 3, 8, 5),
            strides=((168, 8, 24, 1), None, (105, 5, 15, 1)),
            inputs=_numbered,
        ),
        _case(
            "gqa_heads_inside",
            (2, 4, 7, 8),
            (2, 2, 8, 7),
            strides=((224, 8, 32, 1), (112, 8, 1, 16), None),
            inputs=_numbered,
        ),
        _case("padded", (4, 5, 8), (4, 8, 6), strides=((80, 16, 2), (64, 8, 1), (64, 8, 1)), inputs=_numbered),
        _case("padded_f16", (5, 8), (8, 6), D.HALF, strides=((16, 1), (8, 1), (16, 2))),
        _case("stride_0_batch", (4, 5, 8), (4, 8, 6), strides=(None, (0, 6, 1), None), inputs=_numbered),
        _case("stride_0_rows", (5, 8), (8, 6), strides=((0, 1), None, None)),
        _case("stride_0_k", (5, 8), (8, 6), strides=((1, 0), (1, 0), None)),
        _case("unit_dims_any_stride", (1, 5, 8), (1, 8, 6), strides=((77, 8, 1), (1, 6, 1), (3, 6, 1))),
    ]


def _packed_cases() -> list[OpCase]:
    """INT4: rows of odd length, in which pairs reach over the end of a row, and of even length, which fuse."""
    rows: list[tuple[DataType, DataType, DataType]] = [
        (D.HALF, D.INT4, D.HALF),
        (D.INT4, D.HALF, D.HALF),
        (D.BFLOAT16, D.INT4, D.BFLOAT16),
        (D.INT4, D.BFLOAT16, D.FLOAT),
        (D.FLOAT, D.INT4, D.FLOAT),
        (D.DOUBLE, D.INT4, D.DOUBLE),
        (D.INT4, D.INT4, D.INT32),
        (D.INT8, D.INT4, D.INT32),
        (D.INT4, D.UINT8, D.INT32),
        (D.INT4, D.INT32, D.INT32),
        (D.INT4, D.INT64, D.INT64),
        (D.BOOLEAN, D.INT4, D.INT32),
    ]
    types = [
        _case(
            f"{_SHORT[a]}_{_SHORT[b]}_to_{_SHORT[c]}_{'odd' if k % 2 else 'even'}",
            (m, k),
            (k, n),
            a,
            b,
            c,
            inputs=_full_range,
            fast=(a, b) in ((D.HALF, D.INT4), (D.INT4, D.INT4)) and k % 2 == 1,
        )
        for a, b, c in rows
        for m, k, n in ((19, 33, 21), (18, 34, 22))
    ]
    f16, i4 = D.HALF, D.INT4
    batches: list[tuple[str, Dims, Dims, Dims]] = [
        ("batch", (3, 5, 9), (3, 9, 7), (3, 5, 7)),
        ("batch_b_shared", (4, 7, 10), (1, 10, 6), (4, 7, 6)),
        ("batch_b_shared_odd", (4, 7, 9), (1, 9, 5), (4, 7, 5)),
        ("batch_gqa", (2, 6, 7, 10), (2, 3, 10, 6), (2, 6, 7, 6)),
        ("batch_outer_and_inner", (2, 6, 7, 9), (4, 3, 9, 5), (4, 6, 7, 5)),
        ("rank_5", (2, 3, 4, 7, 10), (2, 1, 2, 10, 6), (2, 3, 4, 7, 6)),
    ]
    return [
        *types,
        _case("i4_in_f32", (9, 33), (33, 8), i4, None, D.FLOAT, compute=D.FLOAT, inputs=_full_range),
        _case("i4_least", (9, 34), (34, 8), i4, None, D.INT32, inputs=_least),
        _case("f16_i4_least", (9, 33), (33, 7), f16, i4, f16, inputs=_least),
        *(_case(f"i4_{name}", a, b, f16, i4, f16, dims=c) for name, a, b, c in batches),
        _case("i4_a_batch_gqa", (2, 3, 7, 10), (2, 6, 10, 5), i4, f16, f16, dims=(2, 6, 7, 5)),
        _case("i4_a_transposed", (17, 33), (33, 9), i4, f16, f16, strides=((1, 17), None, None)),
        _case("i4_b_transposed", (18, 34), (34, 9), f16, i4, f16, strides=(None, (1, 34), None), fast=True),
        _case("i4_b_transposed_odd", (17, 33), (33, 9), f16, i4, f16, strides=(None, (1, 33), None)),
        _case("i4_all_transposed", (18, 34), (34, 8), i4, None, D.INT32, strides=((1, 18), (1, 34), (1, 18))),
        _case("i4_padded", (4, 5, 8), (4, 8, 6), f16, i4, f16, strides=(None, (72, 9, 1), None), fast=True),
        _case("i4_a_padded", (4, 5, 8), (4, 8, 6), i4, f16, f16, strides=((80, 16, 2), None, None)),
        _case("i4_stride_0_batch", (4, 5, 8), (4, 8, 6), f16, i4, f16, strides=(None, (0, 6, 1), None)),
        _case("i4_stride_0_k", (5, 8), (8, 6), i4, f16, f16, strides=((1, 0), None, None)),
        _case("i4_shape_1x1_1", (1, 1), (1, 1), i4, f16, f16),
        _case("i4_shape_1x33_1", (1, 33), (33, 1), f16, i4, f16),
        _case("i4_shape_5x1_3", (5, 1), (1, 3), f16, i4, f16),
        _case("i4_f16_1x4x8_4", (1, 4, 8), (1, 8, 4), i4, f16, f16, note="the old provider's sample"),
        _case("f16_i4_64x512_256", (64, 512), (512, 256), f16, i4, f16, strides=(None, (1, 512), None)),
        _case("bf16_i4_1x512_256", (1, 512), (512, 256), D.BFLOAT16, i4, D.BFLOAT16),
        _case("i4_bias_relu", (9, 34), (34, 8), f16, i4, f16, epilogue=bias_then((1, 8), M.RELU_FWD)),
        OpCase("i4_scaled_weights", lambda: _scaled_weights((16, 64), (64, 32)), fast=True),
        OpCase("i4_scaled_weights_odd", lambda: _scaled_weights((5, 33), (33, 7))),
        OpCase("i4_scalar", _integer_scalar, note="a compile-time constant of INT4"),
    ]


def _scaled_weights(a: Dims, b: Dims) -> Graph:
    """How quantised models use INT4: the weights times a factor for each column, then the product."""
    g = Graph("matmul", io_data_type=D.HALF, intermediate_data_type=D.HALF)
    weights = g.tensor("b", dim=b, data_type=D.INT4)
    scaled = g.pointwise(M.MUL, weights, g.tensor("scale", dim=(1, b[1])))
    g.matmul(g.tensor("a", dim=a), scaled).set_output(True).set_name("c")
    return g


def _integer_scalar() -> Graph:
    g = Graph("matmul", io_data_type=D.HALF)
    c = g.matmul(g.tensor("a", dim=(4, 8)), g.tensor("b", dim=(8, 6), data_type=D.INT4))
    g.pointwise(M.MUL, c, g.scalar(-8, data_type=D.INT4, rank=2)).set_output(True).set_name("c")
    return g


def _edge_cases() -> list[OpCase]:
    shapes: list[tuple[Dims, Dims]] = [
        ((1, 1), (1, 1)),
        ((1, 64), (64, 1)),
        ((5, 1), (1, 3)),
        ((1, 33), (33, 7)),
        ((7, 33), (33, 1)),
        ((4, 1, 8), (4, 8, 1)),
        ((128, 3, 3), (128, 3, 17)),
        ((2, 2), (2, 2)),
        ((3, 1000), (1000, 2)),
        ((257, 2), (2, 2)),
        ((31, 31), (31, 31)),
    ]
    plain = [_case(f"shape_{'x'.join(map(str, a))}_{b[-1]}", a, b, fast=a == (1, 1)) for a, b in shapes]
    return [
        *plain,
        _case("cancelling", (9, 64), (64, 11), inputs=_cancelling, fast=True),
        _case("cancelling_f16", (9, 64), (64, 11), D.HALF, inputs=_cancelling),
        _case("long_f16", (4, 4096), (4096, 4), D.HALF, note="accumulated in f32"),
        _case("long_bf16", (4, 4096), (4096, 4), D.BFLOAT16, note="accumulated in f32"),
        OpCase("a_squared", _a_squared, dims={"c": (6, 6)}, note="one tensor at both ports"),
    ]


def _a_squared() -> Graph:
    g = Graph("matmul", io_data_type=D.FLOAT)
    a = g.tensor("a", dim=(6, 6))
    g.matmul(a, a).set_output(True).set_name("c")
    return g


def bias_then(dims: Dims, *modes: PointwiseMode) -> Callable[[Graph, Any], Any]:
    def epilogue(g: Graph, y: Any) -> Any:
        y = g.pointwise(M.ADD, y, g.tensor("bias", dim=dims))
        for mode in modes:
            y = g.pointwise(mode, y)
        return y

    return epilogue


def _residual(g: Graph, y: Any) -> Any:
    scaled = g.pointwise(M.MUL, y, 0.125)
    return g.pointwise(M.ADD, scaled, g.tensor("residual", dim=(9, 7)))


def _chained(g: Graph, y: Any) -> Any:
    hidden = g.pointwise(M.RELU_FWD, y).set_data_type(D.HALF)
    return g.matmul(hidden, g.tensor("b2", dim=(7, 5)))


def _epilogue_cases() -> list[OpCase]:
    cases = [
        _case(f"bias_{mode.name.lower()}_{_SHORT[t]}", (9, 33), (33, 7), t, epilogue=bias_then((1, 7), mode))
        for t in (D.HALF, D.BFLOAT16, D.FLOAT)
        for mode in (M.RELU_FWD, M.GELU_APPROX_TANH_FWD)
    ]
    return [
        *cases,
        _case("bias_per_row", (9, 33), (33, 7), D.HALF, epilogue=bias_then((9, 1))),
        _case("gqa_bias", (2, 4, 5, 8), (2, 2, 8, 7), D.HALF, epilogue=bias_then((1, 4, 1, 7), M.SIGMOID_FWD)),
        _case("residual", (9, 33), (33, 7), D.HALF, epilogue=_residual, fast=True),
        _case("chained_f16", (9, 33), (33, 7), D.HALF, epilogue=_chained, note="the virtual operand is rounded to f16"),
        _case("i8_bias", (9, 33), (33, 7), D.INT8, None, D.INT32, epilogue=bias_then((1, 7)), inputs=_full_range),
    ]


def _model_cases() -> list[OpCase]:
    """Rows of network and benchmark shapes that are small enough, and cuts of larger ones."""
    f32, f16, bf16 = D.FLOAT, D.HALF, D.BFLOAT16
    rows: list[tuple[str, int, int, int, int, int, int, DataType, DataType, DataType]] = [
        ("g001", 1, 16, 32, 64, 0, 0, f32, f32, f32),
        ("g003", 1, 16, 32, 64, 0, 0, bf16, bf16, bf16),
        ("g005", 1, 16, 32, 64, 0, 1, bf16, bf16, bf16),
        ("g007", 1, 16, 32, 64, 1, 1, f32, f32, f32),
        ("g009", 10, 64, 32, 16, 0, 0, f32, bf16, f32),
        ("g011", 10, 64, 32, 16, 0, 1, bf16, bf16, bf16),
        ("g065", 1, 128, 1, 1024, 0, 0, f32, f32, f32),
        ("g069", 1, 128, 1, 1408, 0, 0, f32, f32, f32),
        ("g085", 1, 16, 16, 1024, 0, 0, f16, f16, f32),
        ("g113", 1, 64, 128, 32, 1, 0, f16, f16, f16),
        ("g117", 128, 3, 1152, 3, 0, 0, D.DOUBLE, D.DOUBLE, D.DOUBLE),
        ("g109_cut", 1, 128, 128, 512, 0, 1, f16, f16, f32),
        ("g133", 1, 1, 768, 768, 0, 1, f32, f32, f32),
        ("g129_cut", 1, 96, 128, 768, 0, 1, f32, f32, f32),
        ("g135_cut", 1, 1, 256, 4096, 0, 1, bf16, bf16, bf16),
        ("g123_cut", 1, 97, 97, 997, 0, 1, f16, f16, f16),
        ("g111_cut", 1, 1, 512, 512, 1, 0, f16, f16, f16),
        ("g125_cut", 1, 97, 97, 97, 0, 0, D.INT8, D.INT8, D.INT32),
    ]
    cases: list[OpCase] = []
    for name, batch, m, n, k, a_turned, b_turned, a, b, c in rows:
        strides = ((m * k, 1, m) if a_turned else None, (k * n, 1, k) if b_turned else None, None)
        cases.append(
            _case(
                f"{name}_{batch}x{m}x{n}x{k}",
                (batch, m, k),
                (batch, k, n),
                a,
                b,
                c,
                strides=strides,
                dims=(batch, m, n),
            )
        )
    return cases


CASES = [*_type_cases(), *_batch_cases(), *_layout_cases(), *_packed_cases(), *_edge_cases(),
         *_epilogue_cases(), *_model_cases()]  # fmt: skip
