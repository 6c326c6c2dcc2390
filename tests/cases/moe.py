"""Mixture of experts: modes, groups of any size, routing that is wrong, dtypes, layouts, epilogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graph_api import DataType as D
from graph_api import Graph, PointwiseMode
from graph_api import MoeGroupedMatmulMode as M
from tests.cases import OpCase, Pack

Dims = tuple[int, ...]
_LEAST, _MOST = -(2**31), 2**31 - 1


def forward_graph(
    experts: int, rows: int, k: int, n: int, mode: M = M.NONE, *, groups: int | None = None, tokens: int | None = None,
    top_k: int = 0, dtype: D = D.FLOAT, weights: D | None = None, out: D | None = None, across: bool = True,
    token_stride: Dims | None = None, weight_stride: Dims | None = None, bias: bool = False, **kw: Any,
) -> Graph:  # fmt: skip
    """One grouped product; ``across``: matrices lie column by column, as cuDNN has them."""
    g = Graph("moe", io_data_type=dtype)
    token = g.tensor("token", dim=(1, tokens or rows, k), stride=token_stride)
    stride = weight_stride or ((k * n, 1, k) if across else (k * n, n, 1))
    weight = g.tensor("weight", dim=(experts, k, n), stride=stride, data_type=weights or dtype)
    offsets = g.tensor("offsets", dim=(groups or experts, 1, 1), data_type=D.INT32)
    routing = [g.tensor(name, dim=(1, rows, 1), data_type=D.INT32)
               for name, wanted in (("index", mode is not M.NONE), ("ks", mode is M.SCATTER)) if wanted]  # fmt: skip
    y = g.moe_grouped_matmul(token, weight, offsets, *routing, mode=mode, top_k=top_k, **kw)
    if bias:
        y = g.pointwise(PointwiseMode.SWISH_FWD, g.pointwise(PointwiseMode.ADD, y, g.tensor("bias", dim=(1, 1, n))))
    y.set_output(True).set_name("output")
    if out is not None:
        y.set_data_type(out)
    return g


def backward_graph(
    experts: int, rows: int, k: int, n: int, *, groups: int | None = None, dtype: D = D.FLOAT, out: D | None = None,
    stride_out: Dims | None = None, token_stride: Dims | None = None, **kw: Any,
) -> Graph:  # fmt: skip
    """One gradient of the weights."""
    g = Graph("moe_bwd", io_data_type=dtype)
    doutput, token = g.tensor("doutput", dim=(1, rows, n)), g.tensor("token", dim=(1, rows, k), stride=token_stride)
    offsets = g.tensor("offsets", dim=(groups or experts, 1, 1), data_type=D.INT32)
    dweight = g.moe_grouped_matmul_bwd(doutput, token, offsets, **kw).set_output(True).set_name("dweight")
    if groups is not None:
        dweight.set_dim((experts, k, n))
    if out is not None:
        dweight.set_data_type(out)
    if stride_out is not None:
        dweight.set_stride(stride_out)
    return g


def _inputs(offsets: Sequence[int], index: Sequence[int] = (), ks: Sequence[int] = ()) -> Callable[[Graph], Pack]:
    def inputs(g: Graph) -> Pack:
        pack = g.random_inputs(seed=9)
        for tensor, array in pack.items():
            given = {"offsets": offsets, "index": index, "ks": ks}.get(tensor.name, ())
            if len(given):
                array[...] = np.asarray(given, np.int32).reshape(array.shape)
        return pack

    return inputs


def _top_2(tokens: int) -> tuple[list[int], list[int]]:
    """Rows of two experts for each token, as sorting by expert leaves them."""
    order = np.random.default_rng(5).permutation(2 * tokens)
    return [int(place) // 2 for place in order], [int(place) % 2 for place in order]


def _case(name: str, sizes: tuple[int, int, int, int], offsets: Sequence[int], mode: M = M.NONE, *, fast: bool = False,
          index: Sequence[int] = (), ks: Sequence[int] = (), **kw: Any) -> OpCase:  # fmt: skip
    dims = {"output": (1, sizes[1], sizes[3])}
    return OpCase(name, lambda: forward_graph(*sizes, mode, **kw), _inputs(offsets, index, ks), dims, fast)


def _back(name: str, sizes: tuple[int, int, int, int], offsets: Sequence[int], *, fast: bool = False,
          **kw: Any) -> OpCase:  # fmt: skip
    dims = {"dweight": (sizes[0], *sizes[2:])}
    return OpCase(f"backward_{name}", lambda: backward_graph(*sizes, **kw), _inputs(offsets), dims, fast)


_ROUTINGS: dict[str, tuple[int, int, list[int]]] = {
    "even": (4, 16, [0, 4, 8, 12]),
    "uneven": (4, 21, [0, 3, 4, 17]),
    "empty_groups": (5, 12, [0, 0, 7, 7, 12]),
    "one_takes_all": (3, 10, [0, 0, 0]),
    "nobody": (3, 10, [10, 10, 10]),
    "late_start": (2, 9, [4, 6]),
    "one_expert": (1, 7, [0]),
    "one_row": (3, 1, [0, 0, 1]),
    "decreasing": (4, 12, [0, 9, 3, 6]),
    "outside": (4, 12, [_LEAST, -5, 30, _MOST]),
}
"""Experts, rows, offsets."""


def _forward_cases() -> list[OpCase]:
    index, ks = _top_2(6)
    wrong = [-1, 99, 3, _LEAST, _MOST, 2, 2, 5, 0, 1, 6, 4]
    uneven = [0, 2, 3, 9]
    typed = [
        _case(f"{name}_{'columns' if across else 'rows'}", (4, 21, 24, 20), [0, 3, 4, 17], dtype=dtype, across=across,
              fast=name == "f16" and across)
        for name, dtype in (("f32", D.FLOAT), ("f16", D.HALF), ("bf16", D.BFLOAT16), ("f64", D.DOUBLE))
        for across in (True, False)
    ]  # fmt: skip
    return [
        *typed,
        *(_case(f"routing_{name}", (experts, rows, 8, 6), offsets, fast=name in ("uneven", "outside"))
          for name, (experts, rows, offsets) in _ROUTINGS.items()),
        _case("batches", (2, 15, 8, 6), [0, 4, 7, 8, 8, 13], groups=6),
        _case("gather", (4, 12, 8, 6), uneven, M.GATHER, tokens=6, index=index, fast=True),
        _case("gather_f16", (4, 12, 16, 24), uneven, M.GATHER, tokens=6, index=index, dtype=D.HALF),
        _case("gather_wrong", (4, 12, 8, 6), uneven, M.GATHER, tokens=6, index=wrong),
        _case("scatter", (4, 12, 8, 6), uneven, M.SCATTER, top_k=2, index=index, ks=ks, fast=True),
        _case("scatter_f16", (4, 12, 16, 24), uneven, M.SCATTER, top_k=2, index=index, ks=ks, dtype=D.HALF),
        _case("scatter_wrong", (4, 12, 8, 6), uneven, M.SCATTER, top_k=2, index=wrong, ks=[*ks[:6], -1, 2, *ks[8:]]),
        _case("scatter_twice", (4, 12, 8, 6), uneven, M.SCATTER, top_k=2, index=[0, 1, 2] * 4, ks=[1] * 12),
        _case("scatter_nowhere", (8, 64, 7, 8), [0] * 8, M.SCATTER, top_k=3, index=[0] * 64, ks=[-1] * 64, fast=True),
        _case("scatter_late", (2, 12, 8, 6), [5, 7], M.SCATTER, top_k=2, index=index, ks=ks),
        _case("many_rows", (3, 300, 16, 8), [0, 100, 130], dtype=D.HALF),
        _case("many_experts", (40, 24, 8, 6), sorted(n % 25 for n in range(40))),
        _case("odd", (3, 17, 5, 7), [0, 1, 11], dtype=D.HALF),
        _case("k_1_n_1", (3, 17, 1, 1), [0, 1, 11]),
        _case("bias_swish", (4, 21, 24, 20), [0, 3, 4, 17], dtype=D.HALF, bias=True),
        _case("half_to_float", (4, 21, 24, 20), [0, 3, 4, 17], dtype=D.HALF, out=D.FLOAT),
        _case("two_types", (4, 21, 24, 20), [0, 3, 4, 17], weights=D.BFLOAT16),
        _case("padded", (2, 9, 4, 6), [0, 4], token_stride=(144, 16, 2), weight_stride=(128, 32, 4)),
        _case("experts_last", (2, 9, 4, 6), [0, 4], weight_stride=(1, 12, 2)),
        _case("token_transposed", (2, 9, 4, 6), [0, 4], token_stride=(36, 1, 9)),
        OpCase("declined_i8", lambda: forward_graph(2, 9, 4, 6, dtype=D.INT8),
               declined=dict[str, str].fromkeys(("llvm-cpu", "rocm", "cuda"), "dtype"), fast=True),
    ]  # fmt: skip


def _backward_cases() -> list[OpCase]:
    return [
        *(_back(name, (4, 21, 24, 20), [0, 3, 4, 17], dtype=dtype, fast=name == "f16")
          for name, dtype in (("f32", D.FLOAT), ("f16", D.HALF), ("bf16", D.BFLOAT16), ("f64", D.DOUBLE))),
        *(_back(f"routing_{name}", (experts, rows, 8, 6), offsets, fast=name == "uneven")
          for name, (experts, rows, offsets) in _ROUTINGS.items()),
        _back("batches", (2, 15, 8, 6), [0, 4, 7, 8, 8, 13], groups=6),
        _back("many_rows", (3, 600, 8, 6), [0, 100, 130]),
        _back("half_to_float", (4, 21, 24, 20), [0, 3, 4, 17], dtype=D.HALF, out=D.FLOAT),
        _back("odd", (3, 17, 5, 7), [0, 1, 11], dtype=D.HALF, stride_out=(35, 7, 1)),
        _back("padded", (2, 9, 4, 6), [0, 4], token_stride=(144, 16, 2), stride_out=(96, 16, 2)),
    ]  # fmt: skip


CASES = [*_forward_cases(), *_backward_cases()]
