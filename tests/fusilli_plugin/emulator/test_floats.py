"""Floating-point instructions against numpy, ml_dtypes and exact fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.gfx_kernels import LANES, compute, floats, halves, words

Array = np.ndarray[Any, Any]

INF, NAN = np.inf, np.nan
TINY = 1e-41  # subnormal
EDGES = (0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, TINY, -TINY, 3.4e38, -3.4e38, 1.1754944e-38, 0.5, 1.5, 2.5, -2.5)


def assert_same(got: Array, wanted: Array) -> None:
    """Equal bits; any NaN for a NaN."""
    nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(got), nan)
    kind = f"u{got.dtype.itemsize}"
    assert np.array_equal(got[~nan].view(kind), wanted.astype(got.dtype)[~nan].view(kind)), (got, wanted)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Rounded once, from fractions."""
    out = np.empty(len(a), np.float32)
    with np.errstate(all="ignore"):
        for lane, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
            if not np.isfinite([x, y, z]).all() or float(x) * float(y) == 0:
                out[lane] = x * y + z
            else:
                out[lane] = _nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
    return out


def _nearest(value: Fraction) -> np.float32:
    """A fraction as float32, ties to even."""
    guess = np.float32(float(value))
    near = [guess, np.nextafter(guess, np.float32(-INF)), np.nextafter(guess, np.float32(INF))]
    finite = [x for x in near if np.isfinite(x)]
    return min(finite, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1))


def _max(a: Array, b: Array) -> Array:
    """The number where the other is NaN; +0 is more than -0."""
    both = np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.fmax(a, b))
    return both.astype(a.dtype)


def _min(a: Array, b: Array) -> Array:
    return -_max(-a, -b)


def _med3(a: Array, b: Array, c: Array) -> Array:
    middle = np.sort(np.stack([a, b, c]), axis=0)[1]
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), np.fmin(np.fmin(a, b), c), middle)


FLOAT: dict[str, Callable[[Array, Array, Array], Array]] = {
    "v_add_f32_e32 {d}, {a}, {b}": lambda a, b, c: a + b,
    "v_sub_f32_e32 {d}, {a}, {b}": lambda a, b, c: a - b,
    "v_subrev_f32_e32 {d}, {a}, {b}": lambda a, b, c: b - a,
    "v_mul_f32_e64 {d}, -{a}, |{b}|": lambda a, b, c: -a * np.abs(b),
    "v_add_f32_e64 {d}, {a}, {b} clamp": lambda a, b, c: np.nan_to_num(np.clip(a + b, 0, 1), nan=0.0) + np.float32(0),
    "v_fma_f32 {d}, {a}, {b}, -{c}": lambda a, b, c: _fma(a, b, -c),
    "v_fmac_f32_e32 {d}, {a}, {b}": lambda a, b, c: _fma(a, b, c),
    "v_fmamk_f32 {d}, {a}, 0x40490fdb, {b}": lambda a, b, c: _fma(a, np.full_like(a, np.pi), b),
    "v_min_f32_e32 {d}, {a}, {b}": lambda a, b, c: _min(a, b),
    "v_max_f32_e32 {d}, {a}, {b}": lambda a, b, c: _max(a, b),
    "v_min3_f32 {d}, {a}, {b}, {c}": lambda a, b, c: _min(_min(a, b), c),
    "v_max3_f32 {d}, {a}, {b}, {c}": lambda a, b, c: _max(_max(a, b), c),
    "v_med3_f32 {d}, {a}, {b}, 1.0": lambda a, b, c: _med3(a, b, np.ones_like(a)),
    "v_rndne_f32_e32 {d}, {a}": lambda a, b, c: np.rint(a),
    "v_floor_f32_e32 {d}, {a}": lambda a, b, c: np.floor(a),
    "v_ceil_f32_e32 {d}, {a}": lambda a, b, c: np.ceil(a),
    "v_trunc_f32_e32 {d}, {a}": lambda a, b, c: np.trunc(a),
    "v_rcp_f32_e32 {d}, {a}": lambda a, b, c: (1 / a.astype(np.float64)).astype(np.float32),
    "v_sqrt_f32_e32 {d}, |{a}|": lambda a, b, c: np.sqrt(np.abs(a)),
    "v_cndmask_b32_e64 {d}, -{a}, {b}, s[10:11]": lambda a, b, c: np.where(np.arange(LANES) < 32, b, -a),
    "v_mul_f32_dpp {d}, {a}, {b} row_newbcast:2 row_mask:0xf bank_mask:0xf": (
        lambda a, b, c: np.repeat(a[2::16], 16) * b
    ),
}
MAXIMA_ON_GFX950: dict[str, Callable[..., Array]] = {"v_maximum3_f32": np.maximum, "v_minimum3_f32": np.minimum}


@pytest.mark.parametrize("text", FLOAT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float32(text: str) -> None:
    a, b, c = floats(1, EDGES), floats(2, EDGES[::-1]), floats(3, EDGES[5:])
    body = "s_mov_b64 s[10:11], 0xffffffff\nv_mov_b32_e32 v100, v4\n" + text.format(d="v100", a="v2", b="v3", c="v4")
    got = compute(body, a, b, c)[0].view(np.float32)
    wanted = FLOAT[text](a, b, c)
    if "min" in text or "max" in text or "med" in text:  # a zero of either sign may come of several zeros
        got, wanted = np.where(got == 0, 0, got), np.where(wanted == 0, 0, wanted).astype(np.float32)
    assert_same(got, wanted)


@pytest.mark.parametrize("name", MAXIMA_ON_GFX950)
def test_nan_is_kept_by_maximum3(name: str) -> None:
    a, b = floats(1, EDGES), floats(2, EDGES[::-1])
    got = compute(f"{name} v100, v2, v3, v3", a, b, chip="gfx950")[0].view(np.float32)
    wanted = MAXIMA_ON_GFX950[name](a, b)
    assert np.array_equal(got, wanted, equal_nan=True)


def test_fract_of_what_is_not_finite_is_nan() -> None:
    got = compute("v_fract_f32_e32 v100, v2", floats(1, (NAN, INF, -INF, 1.75, -0.25)))[0].view(np.float32)
    assert np.isnan(got[:3]).all()
    assert got[3:5].tolist() == [0.75, 0.75]


def test_subnormals_are_flushed_where_the_kernel_says_so() -> None:
    a = floats(1, (TINY, -TINY, 1e-30))
    got = compute("v_mul_f32_e32 v100, 1.0, v2", a, subnormals=0)[0].view(np.float32)
    assert got[:3].tolist() == [0.0, -0.0, np.float32(1e-30)]
    assert compute("v_mul_f32_e32 v100, 1.0, v2", a)[0].view(np.float32)[0] == np.float32(TINY)


def _divided(body: str, a: Array, b: Array) -> Array:
    return compute(body, a, b)[0].view(np.float32)


DIVISION = """
v_div_scale_f32 v10, s[10:11], v3, v3, v2
v_div_scale_f32 v11, vcc, v2, v3, v2
v_rcp_f32_e32 v12, v10
v_fma_f32 v13, -v10, v12, 1.0
v_fma_f32 v12, v13, v12, v12
v_mul_f32_e32 v13, v11, v12
v_fma_f32 v14, -v10, v13, v11
v_fma_f32 v13, v14, v12, v13
v_fma_f32 v14, -v10, v13, v11
v_div_fmas_f32 v13, v14, v12, v13
v_div_fixup_f32 v100, v13, v3, v2
"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_division_in_steps_is_the_division(seed: int) -> None:
    """The compiler's own sequence, numbers of all sizes, subnormals, infinities and zeros among them."""
    rng = np.random.default_rng(seed)
    a, b = (np.ldexp(rng.standard_normal(LANES), rng.integers(-146, 127, LANES)).astype(np.float32) for _ in range(2))
    a[:16], b[16:32] = EDGES, EDGES
    a[32:40], b[32:40] = 3e38, np.float32(2.0) ** np.arange(-140, -132)
    assert_same(_divided(DIVISION, a, b), a / b)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_division_of_doubles_in_steps_is_the_division() -> None:
    rng = np.random.default_rng(5)
    a, b = (np.ldexp(rng.standard_normal(LANES), rng.integers(-1060, 1020, LANES)) for _ in range(2))
    a[:8], b[8:16] = EDGES[:8], EDGES[:8]
    body = """
    v_div_scale_f64 v[10:11], s[10:11], v[4:5], v[4:5], v[2:3]
    v_rcp_f64_e32 v[12:13], v[10:11]
    v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
    v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]
    v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
    v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]
    v_div_scale_f64 v[14:15], vcc, v[2:3], v[4:5], v[2:3]
    v_mul_f64 v[16:17], v[14:15], v[12:13]
    v_fma_f64 v[10:11], -v[10:11], v[16:17], v[14:15]
    v_div_fmas_f64 v[10:11], v[10:11], v[12:13], v[16:17]
    v_div_fixup_f64 v[100:101], v[10:11], v[4:5], v[2:3]
    """
    parts = [np.ascontiguousarray(x.view(np.uint32).reshape(LANES, 2).T) for x in (a, b)]
    got = compute(body, *parts[0], *parts[1], results=2)
    assert_same(np.ascontiguousarray(got.T).view(np.float64)[:, 0], a / b)


HALF_EDGES = (0.0, -0.0, INF, -INF, NAN, 6e-8, -6e-8, 65504.0, 1.0, 0.5, 1.5, 2.5, 6.1e-5)
HALF: dict[str, Callable[[Array, Array], Array]] = {
    "v_add_f16_e32 {d}, {a}, {b}": lambda a, b: a + b,
    "v_sub_f16_e32 {d}, {a}, {b}": lambda a, b: a - b,
    "v_mul_f16_e64 {d}, -{a}, {b}": lambda a, b: -a * b,
    "v_fma_f16 {d}, {a}, {b}, {a}": lambda a, b: a * b + a,
    "v_rndne_f16_e32 {d}, {a}": lambda a, b: np.rint(a),
    "v_floor_f16_e32 {d}, {a}": lambda a, b: np.floor(a),
    "v_sqrt_f16_e64 {d}, |{a}|": lambda a, b: np.sqrt(np.abs(a)),
}


@pytest.mark.parametrize("text", HALF)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float16(text: str) -> None:
    """Computed exactly and rounded once, ties to even, subnormals kept; the upper half is zero but for fma."""
    a, b = halves(1, HALF_EDGES), halves(2, HALF_EDGES[::-1])
    got = compute(f"v_mov_b32_e32 v100, 0x7777\n{text.format(d='v100', a='v2', b='v3')}", a, b)[0]
    exact = HALF[text](a[:, 0].astype(np.float64), b[:, 0].astype(np.float64))
    assert_same((got & 0xFFFF).astype(np.uint16).view(np.float16), exact.astype(np.float16))
    assert set((got >> 16).tolist()) == {0}


def test_halves_are_chosen_and_kept() -> None:
    a, b = halves(1) / np.float16(512), halves(2) / np.float16(512)
    body = (
        "v_mov_b32_e32 v100, 0x77778888\nv_fma_f16 v100, v2, v3, 0 op_sel:[1,0,0,1]\n"
        "v_mov_b32_e32 v101, 0x77778888\nv_fma_f16 v101, v2, v3, 0 op_sel:[0,1,0,0]\n"
        "v_mul_f16_sdwa v102, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:WORD_1"
    )
    got = compute(body, a, b, results=3)
    exact = [a[:, i].astype(np.float64) * b[:, j] for i, j in ((1, 0), (0, 1), (1, 1))]
    exact[0], exact[1] = exact[0] + 0.0, exact[1] + 0.0
    products = [each.astype(np.float16).view(np.uint16) for each in exact]
    assert np.array_equal(got[0] >> 16, products[0])
    assert set((got[0] & 0xFFFF).tolist()) == {0x8888}
    assert np.array_equal(got[1] & 0xFFFF, products[1])
    assert set((got[1] >> 16).tolist()) == {0x7777}
    assert np.array_equal(got[2], products[2].astype(np.uint32) << 16)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_packed_halves_with_signs() -> None:
    a, b, c = halves(1, HALF_EDGES), halves(2, HALF_EDGES[::-1]), halves(3)
    got = compute(
        "v_pk_fma_f16 v100, v2, v3, v4 op_sel:[1,0,0] op_sel_hi:[0,1,1] neg_lo:[1,0,0] neg_hi:[0,0,1]", a, b, c
    )
    x, y, z = (each.astype(np.float64) for each in (a, b, c))
    low, high = -x[:, 1] * y[:, 0] + z[:, 0], x[:, 0] * y[:, 1] - z[:, 1]
    found = got[0].view(np.float16).reshape(LANES, 2)
    assert_same(np.ascontiguousarray(found[:, 0]), low.astype(np.float16))
    assert_same(np.ascontiguousarray(found[:, 1]), high.astype(np.float16))


def test_packed_singles() -> None:
    a, b, c, d = (floats(seed) for seed in range(4))
    body = (
        "v_pk_mul_f32 v[100:101], v[2:3], v[4:5] op_sel:[0,1] op_sel_hi:[1,0] neg_lo:[1,0]\n"
        "v_pk_add_f32 v[102:103], v[2:3], v[4:5]\nv_pk_mov_b32 v[104:105], v[2:3], v[4:5] op_sel:[1,0]"
    )
    got = compute(body, a, b, c, d, results=6).view(np.float32)
    assert np.array_equal(got, [-a * d, b * c, a + c, b + d, b, c])


def test_mixed_fma() -> None:
    a, b, c = halves(1), floats(2), halves(3)
    body = (
        "v_fma_mix_f32 v100, v2, v3, v4 op_sel:[1,0,0] op_sel_hi:[1,0,1]\nv_mov_b32_e32 v101, 0x77778888\n"
        "v_fma_mixlo_f16 v101, v2, -v3, v4 op_sel_hi:[1,0,1]\nv_mov_b32_e32 v102, 0x77778888\n"
        "v_fma_mixhi_f16 v102, v2, 1.0, v4 op_sel_hi:[1,0,1]\n"
    )
    got = compute(body.replace("-v3", "v3"), a, b, c, results=3)
    x, z = a.astype(np.float32), c.astype(np.float32)
    assert_same(got[0].view(np.float32), _fma(x[:, 1], b, z[:, 0]))
    assert_same((got[1] & 0xFFFF).astype(np.uint16).view(np.float16), _fma(x[:, 0], b, z[:, 0]).astype(np.float16))
    assert set((got[1] >> 16).tolist()) == {0x7777}
    assert_same((got[2] >> 16).astype(np.uint16).view(np.float16), (x[:, 0] + z[:, 0]).astype(np.float16))


def test_conversions_saturate_and_lose_nan() -> None:
    a = floats(1, (NAN, INF, -INF, 3e9, -3e9, 5e9, -0.5, 2147483647.0, 65535.5, 255.5))
    names = ("i32_f32", "u32_f32", "f32_i32", "f32_ubyte2")
    body = "\n".join(f"v_cvt_{name}_e32 v{100 + n}, v2" for n, name in enumerate(names))
    got = compute(body, a, results=4)
    clean = np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0.0, posinf=1e12, neginf=-1e12)
    assert np.array_equal(got[0].view(np.int32), np.clip(clean, -(1 << 31), (1 << 31) - 1).astype(np.int32))
    assert np.array_equal(got[1], np.clip(clean, 0, (1 << 32) - 1).astype(np.uint32))
    assert np.array_equal(got[2].view(np.float32), a.view(np.int32).astype(np.float32))
    assert np.array_equal(got[3].view(np.float32), (a.view(np.uint32) >> 16 & 255).astype(np.float32))


def _ties(kind: Any) -> Array:
    """Singles at, below and above the middle between neighbours of a small format, and beyond its range."""
    every = np.arange(1 << 8 * np.dtype(kind).itemsize, dtype=f"u{np.dtype(kind).itemsize}").view(kind)
    values = np.unique(every[np.isfinite(every.astype(np.float32))].astype(np.float32))
    if len(values) > 1024:
        values = np.sort(np.concatenate([values[::97], values[1::97], values[:40], values[-40:]]))
    middle = (values[1:] + values[:-1]) / 2
    beyond = values[-1] * np.array([1.01, 1.03, 1.0625, 1.07, 2, 1e3], np.float32)
    all_of = [
        values,
        middle,
        np.nextafter(middle, np.float32(INF)),
        np.nextafter(middle, np.float32(-INF)),
        beyond,
        -beyond,
    ]
    found = np.concatenate([*all_of, np.array([INF, -INF, NAN, 0.0, -0.0], np.float32)]).astype(np.float32)
    return np.resize(found, -(-len(found) // LANES) * LANES).reshape(-1, LANES)


@pytest.mark.parametrize(
    ("name", "kind", "chip"),
    [
        ("v_cvt_f16_f32_e32 v100, v2", np.float16, "gfx90a"),
        ("v_cvt_pk_bf16_f32 v100, v2, v2", ml_dtypes.bfloat16, "gfx950"),
        ("v_cvt_pk_fp8_f32 v100, v2, v2", ml_dtypes.float8_e4m3fnuz, "gfx942"),
        ("v_cvt_pk_bf8_f32 v100, v2, v2", ml_dtypes.float8_e5m2fnuz, "gfx942"),
        ("v_cvt_pk_fp8_f32 v100, v2, v2", ml_dtypes.float8_e4m3fn, "gfx950"),
        ("v_cvt_pk_bf8_f32 v100, v2, v2", ml_dtypes.float8_e5m2, "gfx950"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rounding_to_small_formats(name: str, kind: Any, chip: str) -> None:
    """To nearest, ties to even, subnormals kept; what is too large becomes NaN or infinity, as in ml_dtypes."""
    values = _ties(kind)
    rows = values[np.linspace(0, len(values) - 1, min(len(values), 24)).astype(int)]
    bits = 8 * np.dtype(kind).itemsize
    for row in rows:
        got = compute(name, row, chip=chip)[0]
        found = (got & ((1 << bits) - 1)).astype(f"u{bits // 8}").view(kind)
        wanted = row.astype(kind)
        nan = np.isnan(wanted.astype(np.float32))
        assert np.array_equal(np.isnan(found.astype(np.float32)), nan), row
        assert np.array_equal(found[~nan].view(f"u{bits // 8}"), wanted[~nan].view(f"u{bits // 8}")), row


def test_rounding_towards_zero() -> None:
    a = floats(1, (65519.0, 65520.0, 1e6, -1e6, 1.0009, 5.9e-8))
    got = compute("v_cvt_pkrtz_f16_f32 v100, v2, v2", a)[0]
    found = (got & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    exact = np.clip(a.astype(np.float64), -65504, 65504)
    step = np.maximum(np.exp2(np.floor(np.log2(np.maximum(np.abs(found), 2.0**-14))) - 10), 2.0**-24)
    assert np.all((np.abs(found) <= np.abs(exact)) & (np.abs(exact) < np.abs(found) + step))


@pytest.mark.parametrize(
    ("name", "kind", "chip"),
    [
        ("fp8", ml_dtypes.float8_e4m3fnuz, "gfx942"),
        ("bf8", ml_dtypes.float8_e5m2fnuz, "gfx942"),
        ("fp8", ml_dtypes.float8_e4m3fn, "gfx950"),
        ("bf8", ml_dtypes.float8_e5m2, "gfx950"),
    ],
)
def test_every_byte_as_a_small_float(name: str, kind: Any, chip: str) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(LANES, 4)
    packed = every.view(np.uint32)[:, 0]
    body = (
        "".join(f"v_cvt_f32_{name}_sdwa v{100 + n}, v2 src0_sel:BYTE_{n}\n" for n in range(4))
        + f"v_cvt_pk_f32_{name}_e32 v[104:105], v2\nv_cvt_pk_f32_{name}_sdwa v[106:107], v2 src0_sel:WORD_1"
    )
    got = compute(body, packed, results=8, chip=chip).view(np.float32)
    wanted = every.view(kind).astype(np.float32).T
    assert_same(np.ascontiguousarray(got[:4]), wanted)
    assert_same(np.ascontiguousarray(got[4:]), wanted)


@pytest.mark.parametrize(
    ("name", "number"), [("lt", "a < b"), ("nlt", "~(a < b)"), ("o", "o"), ("u", "u"), ("lg", "lg"), ("neq", "a != b")]
)
def test_comparisons_with_nan(name: str, number: str) -> None:
    a, b = floats(1, EDGES), floats(2, EDGES[::-1])
    unordered = np.isnan(a) | np.isnan(b)
    known = {
        "o": ~unordered,
        "u": unordered,
        "lg": ~unordered & (a != b),
        "a < b": a < b,
        "~(a < b)": ~(a < b),
        "a != b": a != b,
    }
    got = compute(f"v_cmp_{name}_f32_e32 vcc, v2, v3\nv_cndmask_b32_e64 v100, 0, 1, vcc", a, b)[0]
    assert np.array_equal(got.astype(bool), known[number])


def test_classes() -> None:
    a = floats(1, (NAN, -INF, -1.0, -TINY, -0.0, 0.0, TINY, 1.0, INF))
    bits = [2, 4, 8, 16, 32, 64, 128, 256, 512]
    for place, bit in enumerate(bits):
        got = compute(f"v_cmp_class_f32_e64 vcc, v2, {bit:#x}\nv_cndmask_b32_e64 v100, 0, 1, vcc", a)[0]
        assert got[:9].tolist() == [int(n == place) for n in range(9)]


def test_exponents() -> None:
    a = floats(1, (1.0, 0.75, -8.0, TINY, 0.0, INF, NAN))
    by = words(2, (200, 3, 0xFFFFFFFD, 140, 5, 1, 1)) % 300
    body = "v_frexp_exp_i32_f32_e32 v100, v2\nv_frexp_mant_f32_e32 v101, v2\nv_ldexp_f32 v102, v2, v3"
    got = compute(body, a, by, results=3)
    mantissa, exponent = np.frexp(a)
    finite = np.isfinite(a)
    assert np.array_equal(got[0].view(np.int32)[finite], exponent[finite])
    assert_same(got[1].view(np.float32), np.where(finite, mantissa, a).astype(np.float32))
    with np.errstate(over="ignore"):
        assert_same(got[2].view(np.float32), np.ldexp(a, by.view(np.int32)))


def test_segments_of_two_over_pi() -> None:
    """The segment of 53 bits, where the table of 1201 bits has it: pi as a series of arctangents of integers."""
    one = 1 << 1400
    pi = 4 * (4 * _arctangent(5, one) - _arctangent(239, one))
    bits = 2 * one * (1 << 1200) // pi
    rng = np.random.default_rng(3)
    a = np.ldexp(rng.uniform(1, 2, LANES), rng.integers(-1000, 1024, LANES))
    by = rng.integers(0, 24, LANES).astype(np.uint32)
    halves_of = a.view(np.uint32).reshape(-1, 2)
    got = compute("v_trig_preop_f64 v[100:101], v[2:3], v4", halves_of[:, 0], halves_of[:, 1], by, results=2)
    result = np.stack([got[0], got[1]], axis=1).reshape(-1).view(np.float64)
    for value, segment, seen in zip(a, by.tolist(), result, strict=True):
        exponent = int(np.frexp(value)[1]) - 1 + 1023
        shift = 53 * segment + max(exponent - 1077, 0)
        if shift > 1148:  # what the table's end does is the hardware's own
            continue
        part = (bits >> (1200 - 53 - shift)) & ((1 << 53) - 1)
        assert seen == np.ldexp(float(part), -53 - shift + (128 if exponent >= 1968 else 0)), (value, segment)


def _arctangent(of: int, one: int) -> int:
    """arctan(1 / of) times ``one``."""
    total, term, n, sign = 0, one // of, 1, 1
    while term:
        total += sign * (term // n)
        term, n, sign = term // (of * of), n + 2, -sign
    return total
