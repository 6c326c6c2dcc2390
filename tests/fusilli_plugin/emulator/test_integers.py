"""Integer instructions, each against Python's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.gfx_kernels import LANES, compute, words

SPECIAL = (0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00FFFFFF, 0x01000000, 0xFFFF, 0x10000, 31, 32, 63)
MASK = 0xFFFFFFFF


def s(value: int, bits: int = 32) -> int:
    """The signed number of some bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _bits(value: int, offset: int, width: int) -> int:
    return (value >> offset) & ((1 << width) - 1)


def _perm(a: int, b: int, selector: int) -> int:
    both = a << 32 | b
    out = 0
    for place in range(4):
        code = selector >> 8 * place & 255
        if code < 8:
            byte = both >> 8 * code & 255
        elif code < 12:
            byte = 255 if both >> (16 * (code - 8) + 15) & 1 else 0
        else:
            byte = 0 if code == 12 else 255
        out |= byte << 8 * place
    return out


def _median(*values: int) -> int:
    return sorted(values)[1]


VECTOR: dict[str, Callable[[int, int, int], int]] = {
    "v_add_u32_e32 {d}, {a}, {b}": lambda a, b, c: a + b,
    "v_sub_u32_e32 {d}, {a}, {b}": lambda a, b, c: a - b,
    "v_subrev_u32_e32 {d}, {a}, {b}": lambda a, b, c: b - a,
    "v_add_u32_e64 {d}, {a}, {b} clamp": lambda a, b, c: min(a + b, MASK),
    "v_sub_u32_e64 {d}, {a}, {b} clamp": lambda a, b, c: max(a - b, 0),
    "v_add_i32 {d}, {a}, {b} clamp": lambda a, b, c: max(-(1 << 31), min(s(a) + s(b), (1 << 31) - 1)),
    "v_and_b32_e32 {d}, {a}, {b}": lambda a, b, c: a & b,
    "v_xnor_b32_e32 {d}, {a}, {b}": lambda a, b, c: ~(a ^ b),
    "v_not_b32_e32 {d}, {a}": lambda a, b, c: ~a,
    "v_lshlrev_b32_e32 {d}, {b}, {a}": lambda a, b, c: a << (b & 31),
    "v_lshrrev_b32_e32 {d}, {b}, {a}": lambda a, b, c: a >> (b & 31),
    "v_ashrrev_i32_e32 {d}, {b}, {a}": lambda a, b, c: s(a) >> (b & 31),
    "v_lshl_add_u32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 {d}, {a}, {b}, {c}": lambda a, b, c: ((a + b) & MASK) << (c & 31),
    "v_lshl_or_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << (b & 31)) | c,
    "v_and_or_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a & b) | c,
    "v_or3_b32 {d}, {a}, {b}, {c}": lambda a, b, c: a | b | c,
    "v_xad_u32 {d}, {a}, {b}, {c}": lambda a, b, c: (a ^ b) + c,
    "v_add3_u32 {d}, {a}, {b}, {c}": lambda a, b, c: a + b + c,
    "v_bfe_u32 {d}, {a}, {b}, {c}": lambda a, b, c: _bits(a, b & 31, c & 31),
    "v_bfe_i32 {d}, {a}, {b}, {c}": lambda a, b, c: s(s(a) >> (b & 31), c & 31) if c & 31 else 0,
    "v_bfi_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a & b) | (~a & c),
    "v_bfm_b32 {d}, {a}, {b}": lambda a, b, c: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bfrev_b32_e32 {d}, {a}": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_bcnt_u32_b32 {d}, {a}, {b}": lambda a, b, c: a.bit_count() + b,
    "v_ffbl_b32_e32 {d}, {a}": lambda a, b, c: (a & -a).bit_length() - 1,
    "v_ffbh_u32_e32 {d}, {a}": lambda a, b, c: 32 - a.bit_length() if a else -1,
    "v_perm_b32 {d}, {a}, {b}, {c}": _perm,
    "v_alignbit_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_mul_lo_u32 {d}, {a}, {b}": lambda a, b, c: a * b,
    "v_mul_hi_u32 {d}, {a}, {b}": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 {d}, {a}, {b}": lambda a, b, c: s(a) * s(b) >> 32,
    "v_mul_u32_u24_e32 {d}, {a}, {b}": lambda a, b, c: _bits(a, 0, 24) * _bits(b, 0, 24),
    "v_mul_hi_u32_u24_e32 {d}, {a}, {b}": lambda a, b, c: _bits(a, 0, 24) * _bits(b, 0, 24) >> 32,
    "v_mul_i32_i24_e32 {d}, {a}, {b}": lambda a, b, c: s(a, 24) * s(b, 24),
    "v_mul_hi_i32_i24_e32 {d}, {a}, {b}": lambda a, b, c: s(a, 24) * s(b, 24) >> 32,
    "v_mad_u32_u24 {d}, {a}, {b}, {c}": lambda a, b, c: _bits(a, 0, 24) * _bits(b, 0, 24) + c,
    "v_mad_i32_i24 {d}, {a}, {b}, {c}": lambda a, b, c: s(a, 24) * s(b, 24) + c,
    "v_min_u32_e32 {d}, {a}, {b}": lambda a, b, c: min(a, b),
    "v_max_i32_e32 {d}, {a}, {b}": lambda a, b, c: max(s(a), s(b)),
    "v_min3_i32 {d}, {a}, {b}, {c}": lambda a, b, c: min(s(a), s(b), s(c)),
    "v_max3_u32 {d}, {a}, {b}, {c}": lambda a, b, c: max(a, b, c),
    "v_med3_u32 {d}, {a}, {b}, {c}": _median,
    "v_med3_i32 {d}, {a}, {b}, {c}": lambda a, b, c: _median(s(a), s(b), s(c)),
    "v_sad_u32 {d}, {a}, {b}, {c}": lambda a, b, c: abs(a - b) + c,
    "v_mad_u32_u16 {d}, {a}, {b}, {c}": lambda a, b, c: _bits(a, 0, 16) * _bits(b, 0, 16) + c,
    "v_mad_i32_i16 {d}, {a}, {b}, {c}": lambda a, b, c: s(a, 16) * s(b, 16) + c,
    "v_add_u16_e32 {d}, {a}, {b}": lambda a, b, c: (a + b) & 0xFFFF,
    "v_mul_lo_u16_e32 {d}, {a}, {b}": lambda a, b, c: (a * b) & 0xFFFF,
    "v_ashrrev_i16_e32 {d}, {b}, {a}": lambda a, b, c: (s(a, 16) >> (b & 15)) & 0xFFFF,
    "v_mad_legacy_u16 {d}, {a}, {b}, {c}": lambda a, b, c: (a * b + c) & 0xFFFF,
    "v_max_i16_e32 {d}, {a}, {b}": lambda a, b, c: max(s(a, 16), s(b, 16)) & 0xFFFF,
    "v_dot4_i32_i8 {d}, {a}, {b}, {c}": lambda a, b, c: c + sum(s(a >> n, 8) * s(b >> n, 8) for n in range(0, 32, 8)),
    "v_dot8_i32_i4 {d}, {a}, {b}, {c}": lambda a, b, c: c + sum(s(a >> n, 4) * s(b >> n, 4) for n in range(0, 32, 4)),
    "v_dot2_i32_i16 {d}, {a}, {b}, {c}": lambda a, b, c: c + sum(s(a >> n, 16) * s(b >> n, 16) for n in (0, 16)),
    # op_sel takes upper halves; a result in the upper half leaves the lower one
    "v_max_u16_e64 {d}, {a}, {b}": lambda a, b, c: max(a & 0xFFFF, b & 0xFFFF),
    "v_add_u16_sdwa {d}, {a}, {b} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_2": (
        lambda a, b, c: (_bits(a, 16, 16) + _bits(b, 16, 8)) & 0xFFFF
    ),
    "v_add_u32_sdwa {d}, sext({a}), {b} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:WORD_0": (
        lambda a, b, c: s(a >> 24, 8) + (b & 0xFFFF)
    ),
    "v_add_u32_sdwa {d}, {a}, {b} dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD": (
        lambda a, b, c: 0x11220044 | ((a + b) & 255) << 8
    ),
    "v_add_u32_sdwa {d}, {a}, {b} dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:DWORD": (
        lambda a, b, c: s(a + b, 8) << 8
    ),
    "v_lshlrev_b32_sdwa {d}, {b}, {a} dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:DWORD": (
        lambda a, b, c: (a << (b & 31) & 0xFFFF) << 16
    ),
}
PACKED: dict[str, Callable[[int, int], int]] = {
    "add_u16": lambda a, b: a + b,
    "sub_u16": lambda a, b: a - b,
    "mul_lo_u16": lambda a, b: a * b,
    "max_i16": lambda a, b: max(s(a, 16), s(b, 16)),
    "min_u16": min,
    "lshlrev_b16": lambda a, b: b << (a & 15),
    "ashrrev_i16": lambda a, b: s(b, 16) >> (a & 15),
}


@pytest.mark.parametrize("text", VECTOR)
def test_vector(text: str) -> None:
    a, b, c = words(1, SPECIAL), words(2, SPECIAL[::-1]), words(3, SPECIAL[3:])
    got = compute(
        f"v_mov_b32_e32 v100, 0x11223344\n{text.format(d='v100', a='v2', b='v3', c='v4')}", a, b, c, chip="gfx942"
    )[0]
    wanted = [VECTOR[text](*map(int, each)) & MASK for each in zip(a, b, c, strict=True)]
    assert got.tolist() == wanted


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("low", "high"), [((0, 0), (1, 1)), ((1, 0), (0, 1)), ((1, 1), (0, 0))])
def test_packed(name: str, low: tuple[int, int], high: tuple[int, int]) -> None:
    a, b = words(1, SPECIAL), words(2, SPECIAL[::-1])
    modifiers = f"op_sel:[{low[0]},{low[1]}] op_sel_hi:[{high[0]},{high[1]}]"
    got = compute(f"v_pk_{name} v100, v2, v3 {modifiers}", a, b)[0]
    for lane in range(LANES):
        x, y = int(a[lane]), int(b[lane])
        parts = [PACKED[name](x >> 16 * i & 0xFFFF, y >> 16 * j & 0xFFFF) & 0xFFFF for i, j in (low, high)]
        assert got[lane] == parts[0] | parts[1] << 16


def test_carries_make_sums_and_differences_of_64_bits() -> None:
    a, b, c, d = (words(seed, SPECIAL[seed:]) for seed in range(4))
    body = (
        "v_add_co_u32_e32 v100, vcc, v2, v4\nv_addc_co_u32_e32 v101, vcc, v3, v5, vcc\n"
        "v_sub_co_u32_e64 v102, s[10:11], v2, v4\nv_subb_co_u32_e64 v103, s[10:11], v3, v5, s[10:11]\n"
        "v_subrev_co_u32_e32 v104, vcc, v2, v4\nv_subbrev_co_u32_e32 v105, vcc, v3, v5, vcc"
    )
    got = compute(body, a, b, c, d, results=6).astype(np.uint64)
    x, y = (low.astype(np.uint64) | high.astype(np.uint64) << 32 for low, high in ((a, b), (c, d)))
    for place, wanted in enumerate((x + y, x - y, y - x)):
        assert np.array_equal(got[2 * place] | got[2 * place + 1] << np.uint64(32), wanted)


def test_shifts_and_products_of_64_bits() -> None:
    a, b, by = words(1, SPECIAL), words(2, SPECIAL[::-1]), words(3, (0, 1, 31, 32, 33, 63, 64, 65))
    body = (
        "v_lshlrev_b64 v[100:101], v4, v[2:3]\nv_lshrrev_b64 v[102:103], v4, v[2:3]\n"
        "v_ashrrev_i64 v[104:105], v4, v[2:3]\nv_mad_u64_u32 v[106:107], vcc, v2, v3, v[2:3]\n"
        "v_mad_i64_i32 v[108:109], vcc, v2, v3, v[2:3]\nv_lshl_add_u64 v[110:111], v[2:3], 3, v[2:3]"
    )
    got = compute(body, a, b, by, results=12)
    for lane in range(LANES):
        low, high, n = int(a[lane]), int(b[lane]), int(by[lane]) & 63
        x = low | high << 32
        wanted = [x << n, x >> n, s(x, 64) >> n, low * high + x, s(low) * s(high) + x, (x << 3) + x]
        found = [int(got[2 * place, lane]) | int(got[2 * place + 1, lane]) << 32 for place in range(6)]
        assert found == [value & (1 << 64) - 1 for value in wanted]


COMPARISONS = {"lt": "<", "eq": "==", "le": "<=", "gt": ">", "ne": "!=", "ge": ">="}


@pytest.mark.parametrize("kind", ["u32", "i32", "u16", "i16"])
def test_comparisons(kind: str) -> None:
    a, b = words(1, SPECIAL), words(2, SPECIAL[::-1])
    a[20:30] = b[20:30]
    bits = int(kind[1:])
    for name, sign in COMPARISONS.items():
        got = compute(f"v_cmp_{name}_{kind}_e32 vcc, v2, v3\nv_cndmask_b32_e64 v100, 5, 9, vcc", a, b)[0]
        for lane in range(LANES):
            x, y = (s(int(v), bits) if kind[0] == "i" else int(v) & ((1 << bits) - 1) for v in (a[lane], b[lane]))
            assert got[lane] == (9 if eval(f"{x} {sign} {y}") else 5), (name, x, y)


def test_a_comparison_that_sets_the_lanes() -> None:
    a = np.arange(LANES, dtype=np.uint32)
    got = compute("v_mov_b32_e32 v100, 7\nv_cmpx_gt_u32_e32 vcc, 20, v2\nv_mov_b32_e32 v100, v2", a)[0]
    assert got.tolist() == [*range(20), *[7] * 44]


SCALAR: dict[str, Callable[[int, int], tuple[int, int | None]]] = {
    "s_add_u32 s20, s10, s11": lambda a, b: (a + b, (a + b) >> 32),
    "s_sub_u32 s20, s10, s11": lambda a, b: (a - b, b > a),
    "s_add_i32 s20, s10, s11": lambda a, b: (a + b, not -(1 << 31) <= s(a) + s(b) < 1 << 31),
    "s_mul_i32 s20, s10, s11": lambda a, b: (a * b, None),
    "s_mul_hi_u32 s20, s10, s11": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32 s20, s10, s11": lambda a, b: (s(a) * s(b) >> 32, None),
    "s_andn2_b32 s20, s10, s11": lambda a, b: (a & ~b, (a & ~b) != 0),
    "s_lshl_b32 s20, s10, s11": lambda a, b: (a << (b & 31), (a << (b & 31)) & MASK != 0),
    "s_ashr_i32 s20, s10, s11": lambda a, b: (s(a) >> (b & 31), s(a) >> (b & 31) != 0),
    "s_lshl2_add_u32 s20, s10, s11": lambda a, b: ((a << 2) + b, (a << 2) + b > MASK),
    "s_bfe_u32 s20, s10, 0x80004": lambda a, b: (_bits(a, 4, 8), _bits(a, 4, 8) != 0),
    "s_bfe_i32 s20, s10, 0x10001c": lambda a, b: (s(a) >> 28, s(a) >> 28 != 0),
    "s_min_i32 s20, s10, s11": lambda a, b: (min(s(a), s(b)), s(a) < s(b)),
    "s_max_u32 s20, s10, s11": lambda a, b: (max(a, b), None),
    # the difference has 32 bits, so that of far numbers has the other sign
    "s_absdiff_i32 s20, s10, s11": lambda a, b: (abs(s(a - b)), a != b),
    "s_abs_i32 s20, s10": lambda a, b: (abs(s(a)), a != 0),
    "s_pack_lh_b32_b16 s20, s10, s11": lambda a, b: ((a & 0xFFFF) | (b & 0xFFFF0000), None),
    "s_ff1_i32_b32 s20, s10": lambda a, b: ((a & -a).bit_length() - 1, None),
    "s_flbit_i32_b32 s20, s10": lambda a, b: (32 - a.bit_length() if a else -1, None),
    # how many of the highest bits are the sign's; -1 if all are
    "s_flbit_i32 s20, s10": lambda a, b: (
        32 - (a ^ -(a >> 31) & MASK).bit_length() if a not in (0, MASK) else -1,
        None,
    ),
    "s_bcnt1_i32_b32 s20, s10": lambda a, b: (a.bit_count(), a != 0),
    "s_brev_b32 s20, s10": lambda a, b: (int(f"{a:032b}"[::-1], 2), None),
    "s_sext_i32_i16 s20, s10": lambda a, b: (s(a, 16), None),
    "s_movk_i32 s20, 0x8000": lambda a, b: (-0x8000, None),
}


@pytest.mark.parametrize("text", SCALAR)
def test_scalar(text: str) -> None:
    pairs = [(0x80000000, 1), (0x80000000, 0xFFFFFFFF), (0, 0), (7, 40), (0xFFFFFFFF, 1), (0xF1234567, 0x89ABCDEF)]
    pairs += [(5, 5), (0x7FFFFFFF, 0x80000000), (1, 0xFFFFFFFE), (0x12345678, 0xFFFF)]
    body = "".join(
        f"s_mov_b32 s10, {a:#x}\ns_mov_b32 s11, {b:#x}\ns_cmp_eq_u32 0, 1\n{text}\n"
        f"s_cselect_b32 s21, 1, 0\nv_mov_b32_e32 v{100 + 2 * n}, s20\nv_mov_b32_e32 v{101 + 2 * n}, s21\n"
        for n, (a, b) in enumerate(pairs)
    )
    got = compute(body, results=2 * len(pairs))
    for n, (a, b) in enumerate(pairs):
        value, flag = SCALAR[text](a, b)
        assert got[2 * n, 0] == value & MASK, (hex(a), hex(b))
        assert flag is None or got[2 * n + 1, 0] == int(flag), (hex(a), hex(b))


def test_scalar_pairs() -> None:
    low, high = 0x89ABCDEF, 0xF1234567
    x = low | high << 32
    body = (
        f"s_mov_b32 s10, {low:#x}\ns_mov_b32 s11, {high:#x}\ns_lshl_b64 s[20:21], s[10:11], 13\n"
        "s_ashr_i64 s[22:23], s[10:11], 40\ns_bfe_u64 s[24:25], s[10:11], 0x140018\ns_not_b64 s[26:27], s[10:11]\n"
        "s_flbit_i32_i64 s28, s[10:11]\n"
    ) + "".join(f"v_mov_b32_e32 v{100 + n}, s{20 + n}\n" for n in range(9))
    got = compute(body, results=9)[:, 0].astype(np.uint64)
    assert got[8] == 4  # 0xF and then a 1 whose sign bits end
    found = [int(got[2 * n]) | int(got[2 * n + 1]) << 32 for n in range(4)]
    assert found == [v & (1 << 64) - 1 for v in (x << 13, s(x, 64) >> 40, _bits(x, 24, 20), ~x)]


def test_lanes_are_turned_off_and_on() -> None:
    body = (
        "v_mov_b32_e32 v100, 1\nv_cmp_gt_u32_e32 vcc, 16, v2\ns_and_saveexec_b64 s[10:11], vcc\n"
        "v_mov_b32_e32 v100, 2\ns_xor_b64 exec, exec, s[10:11]\nv_mov_b32_e32 v100, 3\n"
    )
    got = compute(body, np.arange(LANES, dtype=np.uint32))[0]
    assert got.tolist() == [2] * 16 + [3] * 48


def test_a_loop() -> None:
    got = compute(
        "s_mov_b32 s10, 0\n.LOOP:\ns_add_i32 s10, s10, 3\ns_cmp_lt_i32 s10, 20\n"
        "s_cbranch_scc1 .LOOP\nv_mov_b32_e32 v100, s10"
    )
    assert set(got[0].tolist()) == {21}


DPP: dict[str, Callable[[int], int | None]] = {
    "quad_perm:[3,0,0,1]": lambda lane: lane // 4 * 4 + (3, 0, 0, 1)[lane % 4],
    "row_shl:3": lambda lane: lane + 3 if lane % 16 < 13 else None,
    "row_shr:5": lambda lane: lane - 5 if lane % 16 >= 5 else None,
    "row_ror:4": lambda lane: lane // 16 * 16 + (lane - 4) % 16,
    "row_mirror": lambda lane: lane // 16 * 16 + 15 - lane % 16,
    "row_half_mirror": lambda lane: lane // 8 * 8 + 7 - lane % 8,
    "row_newbcast:6": lambda lane: lane // 16 * 16 + 6,
    "row_bcast:15": lambda lane: lane // 16 * 16 - 1 if lane >= 16 else None,
    "row_bcast:31": lambda lane: 31 if lane >= 32 else None,
    "wave_shr:1": lambda lane: lane - 1 if lane else None,
}


@pytest.mark.parametrize("move", DPP)
@pytest.mark.parametrize("zero", [False, True])
def test_dpp(move: str, zero: bool) -> None:
    a, b = words(1), words(2)
    text = f"v_mov_b32_e32 v100, 77\nv_add_u32_dpp v100, v2, v3 {move} row_mask:0xd bank_mask:0x7"
    got = compute(text + (" bound_ctrl:0" if zero else ""), a, b)[0]
    for lane in range(LANES):
        source = DPP[move](lane)
        enabled = lane // 16 != 1 and lane % 16 // 4 != 3
        if not enabled or (source is None and not zero):
            assert got[lane] == 77
        else:
            assert got[lane] == ((int(a[source]) if source is not None else 0) + int(b[lane])) & MASK


def test_dpp_does_not_take_from_lanes_that_are_off() -> None:
    a = words(1)
    body = "v_mov_b32_e32 v100, 77\ns_mov_b32 exec_hi, 0\nv_mov_b32_dpp v100, v2 row_mirror row_mask:0xf bank_mask:0xf"
    assert compute(body, a)[0].tolist() == [*a[15::-1], *a[31:15:-1], *[77] * 32]
    body = (
        "v_mov_b32_e32 v100, 77\ns_mov_b64 exec, 0xff00ff\nv_mov_b32_dpp v100, v2 row_mirror row_mask:0xf bank_mask:0xf"
    )
    assert set(compute(body, a)[0].tolist()) == {77}


def test_moves_between_lanes() -> None:
    a, b = words(1), words(2)
    body = (
        "v_readlane_b32 s10, v2, 37\nv_mov_b32_e32 v100, s10\nv_mov_b32_e32 v101, v3\nv_writelane_b32 v101, s10, 5\n"
        "v_readfirstlane_b32 s11, v3\nv_mov_b32_e32 v102, s11\nv_mbcnt_lo_u32_b32 v103, -1, 0\n"
        "v_mbcnt_hi_u32_b32 v103, -1, v103\n"
        "v_mov_b32_e32 v104, v2\nv_mov_b32_e32 v105, v3\nv_swap_b32 v104, v105"
    )
    got = compute(body, a, b, results=6)
    assert set(got[0].tolist()) == {a[37]}
    assert got[1].tolist() == [*b[:5], a[37], *b[6:]]
    assert set(got[2].tolist()) == {b[0]}
    assert got[3].tolist() == list(range(LANES))
    assert np.array_equal(got[4:], [b, a])


def test_rows_change_places_on_gfx950() -> None:
    a, b = words(1), words(2)
    body = "v_mov_b32_e32 v100, v2\nv_mov_b32_e32 v101, v3\nv_permlane{0}_swap_b32 v100, v101"
    got = compute(body.format(32), a, b, results=2, chip="gfx950")
    assert np.array_equal(got, [[*a[:32], *b[:32]], [*a[32:], *b[32:]]])
    got = compute(body.format(16), a, b, results=2, chip="gfx950")
    rows = [x.reshape(4, 16) for x in (a, b)]
    wanted = [[rows[0][0], rows[1][0], rows[0][2], rows[1][2]], [rows[0][1], rows[1][1], rows[0][3], rows[1][3]]]
    assert np.array_equal(got, np.reshape(wanted, (2, LANES)))
