"""Matrix instructions against numpy, with the layouts of AMD's matrix instruction calculator written out again."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from fusilli_plugin.emulator import UnmodelledError
from tests.support.gfx_kernels import LANES, compute

Array = np.ndarray[Any, Any]
F8, BF8 = ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz
OCP8, OCPB8 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


class Form(NamedTuple):
    """An instruction: rows and columns, depth, blocks, elements of A and B and of the result."""

    name: str
    rows: int
    depth: int
    blocks: int
    left: Any
    right: Any
    result: Any
    chip: str = "gfx942"


FORMS = [
    Form("v_mfma_f32_32x32x8_f16", 32, 8, 1, np.float16, np.float16, np.float32),
    Form("v_mfma_f32_16x16x16_f16", 16, 16, 1, np.float16, np.float16, np.float32),
    Form("v_mfma_f32_32x32x4_2b_f16", 32, 4, 2, np.float16, np.float16, np.float32),
    Form("v_mfma_f32_16x16x4_4b_f16", 16, 4, 4, np.float16, np.float16, np.float32),
    Form("v_mfma_f32_4x4x4_16b_f16", 4, 4, 16, np.float16, np.float16, np.float32),
    Form("v_mfma_f32_16x16x32_f16", 16, 32, 1, np.float16, np.float16, np.float32, "gfx950"),
    Form("v_mfma_f32_32x32x16_f16", 32, 16, 1, np.float16, np.float16, np.float32, "gfx950"),
    Form("v_mfma_f32_32x32x8_bf16", 32, 8, 1, ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32),
    Form("v_mfma_f32_16x16x16_bf16", 16, 16, 1, ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32),
    Form("v_mfma_f32_16x16x16bf16_1k", 16, 16, 1, ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32, "gfx90a"),
    Form("v_mfma_f32_32x32x8f16", 32, 8, 1, np.float16, np.float16, np.float32, "gfx90a"),
    Form("v_mfma_f32_32x32x2_f32", 32, 2, 1, np.float32, np.float32, np.float32),
    Form("v_mfma_f32_16x16x4_f32", 16, 4, 1, np.float32, np.float32, np.float32),
    Form("v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, np.float32, np.float32, np.float32),
    Form("v_mfma_f32_16x16x1_4b_f32", 16, 1, 4, np.float32, np.float32, np.float32),
    Form("v_mfma_f32_4x4x1_16b_f32", 4, 1, 16, np.float32, np.float32, np.float32),
    Form("v_mfma_f64_16x16x4_f64", 16, 4, 1, np.float64, np.float64, np.float64),
    Form("v_mfma_f64_4x4x4_4b_f64", 4, 4, 4, np.float64, np.float64, np.float64),
    Form("v_mfma_i32_32x32x16_i8", 32, 16, 1, np.int8, np.int8, np.int32),
    Form("v_mfma_i32_16x16x32_i8", 16, 32, 1, np.int8, np.int8, np.int32),
    Form("v_mfma_i32_16x16x16i8", 16, 16, 1, np.int8, np.int8, np.int32, "gfx90a"),
    Form("v_mfma_i32_4x4x4_16b_i8", 4, 4, 16, np.int8, np.int8, np.int32),
    Form("v_mfma_i32_16x16x64_i8", 16, 64, 1, np.int8, np.int8, np.int32, "gfx950"),
    Form("v_mfma_f32_16x16x32_fp8_fp8", 16, 32, 1, F8, F8, np.float32),
    Form("v_mfma_f32_32x32x16_fp8_bf8", 32, 16, 1, F8, BF8, np.float32),
    Form("v_mfma_f32_16x16x32_bf8_fp8", 16, 32, 1, OCPB8, OCP8, np.float32, "gfx950"),
]  # fmt: skip


def _values(rng: np.random.Generator, kind: Any, shape: tuple[int, ...]) -> Array:
    """Small numbers whose products and sums are exact."""
    return rng.integers(-7, 8, shape).astype(np.float64).astype(kind)


def _operand(matrix: Array, blocks: int) -> list[Array]:
    """[blocks, rows, depth] as registers: lane row + rows (block + blocks (k // each)) holds `each` k in a row."""
    rows, depth = matrix.shape[1:]
    each = blocks * rows * depth // LANES
    lanes = np.empty((LANES, each), matrix.dtype)
    for block, row, k in np.ndindex(matrix.shape):
        lanes[row + rows * (block + blocks * (k // each)), k % each] = matrix[block, row, k]
    return list(np.ascontiguousarray(lanes).view(np.uint8).reshape(LANES, -1, 4).copy().view(np.uint32)[..., 0].T)


def _places(form: Form) -> list[tuple[int, int, int, int, int]]:
    """(block, row, column, lane, element of the lane) of the result."""
    found = []
    for block, i, j in np.ndindex(form.blocks, form.rows, form.rows):
        if form.result is np.float64:
            where = (j + 16 * (i % 4), i // 4) if form.rows == 16 else (j + 4 * block + 16 * i, 0)
        elif form.rows == 32:
            where = (j + 32 * ((i // 4) % 2), 16 * block + 4 * (i // 8) + i % 4)
        elif form.rows == 16:
            where = (j + 16 * (i // 4), 4 * block + i % 4)
        else:
            where = (j + 4 * block, i)
        found.append((block, i, j, *where))
    return found


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.name}-{form.chip}")
def test_products(form: Form) -> None:
    rng = np.random.default_rng(1)
    a = _values(rng, form.left, (form.blocks, form.rows, form.depth))
    b = _values(rng, form.right, (form.blocks, form.rows, form.depth))  # B transposed
    c = _values(rng, form.result, (form.blocks, form.rows, form.rows))
    left, right = _operand(a, form.blocks), _operand(b, form.blocks)
    width = np.dtype(form.result).itemsize // 4
    each = form.blocks * form.rows**2 // LANES
    added = np.zeros((LANES, each), form.result)
    for block, i, j, lane, at in _places(form):
        added[lane, at] = c[block, i, j]
    third = list(np.ascontiguousarray(added).view(np.uint32).T)
    n, count = len(left), each * width
    first, second = _range(2, n), _range(2 + n, len(right))
    start = 2 + n + len(right)
    body = "".join(f"v_mov_b32_e32 v{180 + k}, v{start + k}\n" for k in range(count))
    body += f"{form.name} {_range(100, count)}, {first}, {second}, {_range(180, count)}\n"
    got = compute(body, *left, *right, *third, results=count, chip=form.chip)
    lanes = np.ascontiguousarray(got.T).view(form.result)
    wanted = np.einsum("bik,bjk->bij", a.astype(np.float64), b.astype(np.float64)) + c.astype(np.float64)
    for block, i, j, lane, at in _places(form):
        assert lanes[lane, at] == wanted[block, i, j], (block, i, j)


def _range(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


def test_accumulators_and_constants() -> None:
    rng = np.random.default_rng(2)
    a, b = (_values(rng, np.float16, (1, 16, 16)) for _ in range(2))
    body = "v_mfma_f32_16x16x16_f16 a[4:7], v[2:3], v[4:5], 0\nv_mfma_f32_16x16x16_f16 a[4:7], v[2:3], v[4:5], a[4:7]\n"
    body += "".join(f"v_accvgpr_read_b32 v{100 + n}, a{4 + n}\n" for n in range(4))
    got = compute(body, *_operand(a, 1), *_operand(b, 1), results=4).view(np.float32)
    product = 2 * (a[0].astype(np.float64) @ b[0].astype(np.float64).T)
    assert all(got[i % 4, j + 16 * (i // 4)] == product[i, j] for i, j in np.ndindex(16, 16))


@pytest.mark.parametrize(
    "text",
    [
        "v_mfma_f32_16x16x16_f17 v[100:103], v[2:3], v[4:5], 0",
        "v_mfma_f32_16x16x17_f16 v[100:103], v[2:3], v[4:5], 0",
        "v_mfma_f32_64x64x4_f16 v[100:103], v[2:3], v[4:5], 0",
        "v_mfma_f32_8x8x16_f16 v100, v[2:3], v[4:5], 0",
        "v_mfma_f32_0x0x0_f16 v100, v[2:3], v[4:5], 0",
        "v_mfma_f32_16x16x16_f16 v[100:102], v[2:3], v[4:5], 0",
        "v_mfma_f32_16x16x16_f16 v[100:103], v[2:3], v[4:5], 0 cbsz:1",
        "v_mfma_f32_16x16x16_f16 v[100:103], v[2:3], v[4:5], 0 neg:[1,0,0]",
        "v_smfmac_f32_16x16x32_f16 v[100:103], v[2:3], v[4:7], v8 cbsz:1",
        "v_smfmac_f32_16x16x32_f16 v[100:103], v[2:3], v[4:7], v8 abid:-1",
        "v_smfmac_f32_16x16x32_f16 v[100:103], v[2:3], v[4:7], v8 abid:4",
        "v_smfmac_f32_4x4x128_f16 v100, v[2:3], v[4:7], v8",
        "v_mfma_f64_32x32x4_f64 v[100:131], v[2:5], v[6:9], 0",
        "v_mfma_f32_4x4x16_f16 v100, v[2:3], v[4:5], 0",
        "v_mfma_i32_16x16x16_f16 v[100:103], v[2:3], v[4:5], 0",
    ],
)
def test_other_forms_are_named(text: str) -> None:
    with pytest.raises(UnmodelledError) as caught:
        compute(text)
    assert text.split(" ", 1)[0] in str(caught.value)
