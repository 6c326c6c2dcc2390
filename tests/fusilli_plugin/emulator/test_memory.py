"""Loads, stores, LDS, private memory, waits and barriers; what must be found wrong is found."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fusilli_plugin.emulator import HazardError, Machine, UnmodelledError
from tests.support.gfx_kernels import LANES, compute, floats, kernel_text, launch, words

LANE = np.arange(LANES, dtype=np.uint32)


def test_loads_of_bytes_and_halves() -> None:
    data = words(1)
    body = """
    s_load_dwordx4 s[2:5], s[0:1], 0x0
    v_and_b32_e32 v0, 0x3ff, v0
    v_lshlrev_b32_e32 v1, 2, v0
    v_mov_b32_e32 v10, 0x77778888
    v_mov_b32_e32 v11, 0x77778888
    s_waitcnt lgkmcnt(0)
    global_load_ubyte v6, v1, s[2:3] offset:3
    global_load_sbyte v7, v1, s[2:3] offset:3
    global_load_ushort v8, v1, s[2:3] offset:2
    global_load_sshort v9, v1, s[2:3]
    global_load_short_d16 v10, v1, s[2:3]
    global_load_short_d16_hi v11, v1, s[2:3]
    s_waitcnt vmcnt(0)
    v_lshlrev_b32_e32 v2, 5, v0
    global_store_dwordx4 v2, v[6:9], s[4:5]
    global_store_dwordx2 v2, v[10:11], s[4:5] offset:16
    global_store_short_d16_hi v2, v11, s[4:5] offset:24
    global_store_byte v2, v10, s[4:5] offset:26
    """
    out = np.zeros((LANES, 8), np.uint32)
    launch(kernel_text(body), [data, out])
    signed = data.view(np.int32)
    low = data & 0xFFFF
    wanted = [
        data >> 24, (signed >> 24).view(np.uint32), data >> 16, (signed << 16 >> 16).view(np.uint32),
        0x77770000 | low, low << 16 | 0x8888, low | (low & 255) << 16,
    ]  # fmt: skip
    assert np.array_equal(out[:, :7], np.stack(wanted, axis=1))


RANGE = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_and_b32_e32 v0, 0x3ff, v0
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
s_mov_b64 s[8:9], s[4:5]
s_mov_b32 s10, {size}
s_mov_b32 s11, 0x27000
v_add_u32_e32 v3, {base}, v1
buffer_load_dwordx2 v[4:5], v3, s[8:11], {extra} offen offset:{offset}
v_lshlrev_b32_e32 v2, 3, v0
s_waitcnt vmcnt(0)
global_store_dwordx2 v2, v[4:5], s[6:7]
"""


def _ranged(
    size: int, *, base: int = 0, offset: int = 0, extra: str = "0", wraps: bool = True
) -> tuple[np.ndarray, Machine]:
    data, out = words(1), np.zeros((LANES, 2), np.uint32)
    text = kernel_text(RANGE.format(size=size, base=base, offset=offset, extra=extra))
    machine = launch(text, [data, out], wraps=wraps)
    return out, machine


def test_a_buffer_ends_where_its_descriptor_says_each_word_for_itself() -> None:
    data = np.concatenate([words(1), [0]])
    out, machine = _ranged(40 * 4)
    for lane in range(LANES):
        assert out[lane].tolist() == [data[lane] if lane < 40 else 0, data[lane + 1] if lane < 39 else 0]
    assert machine.counts["buffer words outside"] == 49
    assert not machine.counts["bytes read outside all buffers"]
    out, _ = _ranged(40 * 4 - 1)  # the last word does not end inside
    assert out[39].tolist() == [0, 0]


def test_scalar_offsets_count_for_the_range() -> None:
    data = words(1)
    out, _ = _ranged(40 * 4, offset=8, extra="16")
    assert out[:, 0].tolist() == [*data[6:40], *[0] * 30]


def test_negative_offsets_in_both_readings() -> None:
    """-32 plus 32: inside if the sum wraps at 2**32; outside if it does not."""
    data = words(1)
    out, machine = _ranged(LANES * 4, base=-32, offset=32)
    assert out[:, 0].tolist() == data.tolist()
    assert machine.counts["buffer offsets past 2**32"] == 8
    out, _ = _ranged(LANES * 4, base=-32, offset=32, wraps=False)
    assert out[:, 0].tolist() == [*[0] * 8, *data[8:]]


def test_reads_outside_all_buffers_are_counted_and_named() -> None:
    out, machine = _ranged(LANES * 4 + 64)
    assert machine.counts["bytes read outside all buffers"] == 4
    assert machine.first_outside.startswith("by buffer_load_dwordx2 v[4:5], v3, s[8:11]")
    assert out[63, 1] == 0xFFFFFFFF


PROLOGUE = (
    "s_load_dwordx4 s[2:5], s[0:1], 0x0\nv_and_b32_e32 v0, 0x3ff, v0\nv_lshlrev_b32_e32 v1, 2, v0\n"
    "s_waitcnt lgkmcnt(0)\n"
)


def test_writes_outside_are_found() -> None:
    with pytest.raises(HazardError, match="4 bytes written outside all buffers.*global_store_dword v1, v0"):
        launch(kernel_text(PROLOGUE + "global_store_dword v1, v0, s[4:5] offset:4"), [words(1), words(2)])


@pytest.mark.parametrize(
    "body",
    [
        "s_load_dwordx4 s[2:5], s[0:1], 0x0\nv_mov_b32_e32 v1, s2",
        PROLOGUE + "global_load_dword v2, v1, s[2:3]\nv_add_u32_e32 v3, v2, v2",
        PROLOGUE + "global_load_dword v2, v1, s[2:3]\ns_waitcnt lgkmcnt(0)\nv_add_u32_e32 v3, v2, v2",
        PROLOGUE + "global_load_dword v2, v1, s[2:3]\nglobal_load_dword v3, v1, s[2:3]\ns_waitcnt vmcnt(1)\n"
        "v_mov_b32_e32 v4, v3",
        PROLOGUE + "global_load_dword v2, v1, s[2:3]\nglobal_store_dword v1, v2, s[4:5]",
        PROLOGUE + "global_load_dword v2, v1, s[2:3]\nv_mov_b32_e32 v2, 0",
        PROLOGUE
        + "global_load_dwordx2 v[2:3], v1, s[2:3] offset:-4\nv_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[2:3], 0",
        PROLOGUE + "ds_read_b32 v2, v1\nv_add_u32_e32 v3, v2, v2",
        PROLOGUE + "ds_bpermute_b32 v2, v1, v0\nv_add_u32_e32 v3, v2, v2",
        # scalar loads come in any order, so that waiting for all but one says nothing
        "s_load_dword s2, s[0:1], 0x0\ns_load_dword s3, s[0:1], 0x4\ns_waitcnt lgkmcnt(1)\ns_add_u32 s4, s2, 1",
    ],
)
def test_a_missing_wait_is_found(body: str) -> None:
    with pytest.raises(HazardError, match="before what was loaded has come"):
        launch(kernel_text(body, lds=1024), [words(1), words(2)])


def test_enough_waiting_is_not_complained_about() -> None:
    data, out = words(1), words(2)
    body = PROLOGUE + (
        "global_load_dword v2, v1, s[2:3]\nglobal_load_dword v3, v1, s[2:3]\ns_waitcnt vmcnt(1)\n"
        "global_store_dword v1, v2, s[4:5]"
    )
    launch(kernel_text(body), [data, out])
    assert np.array_equal(data, out)


def test_local_memory() -> None:
    a, b = words(1), words(2)
    body = """
    v_lshlrev_b32_e32 v10, 1, v0
    ds_write2_b32 v10, v2, v3 offset0:2 offset1:3
    ds_write2st64_b32 v0, v2, v3 offset0:4 offset1:6
    ds_write_b8 v0, v2 offset:2048
    ds_write_b16_d16_hi v0, v2 offset:2304
    s_waitcnt lgkmcnt(0)
    ds_read_b64 v[100:101], v10 offset:8
    ds_read2_b32 v[102:103], v10 offset0:3 offset1:2
    ds_read2st64_b32 v[104:105], v0 offset0:6 offset1:4
    ds_read_u8 v106, v0 offset:2048
    ds_read_i16 v107, v0 offset:2304
    ds_read_b32 v108, v0 offset:2560
    s_waitcnt lgkmcnt(0)
    """
    got = compute(body, a, b, results=9, lds=4096)
    high = (a.view(np.int32) >> 16).view(np.uint32)
    assert np.array_equal(got[:8], [a, b, b, a, b, a, a & 255, high])
    assert set(got[8].tolist()) == {0xFFFFFFFF}, "what nobody wrote is NaN"


def test_permutes_and_swizzles() -> None:
    a = words(1)
    index = np.random.default_rng(3).permutation(LANES).astype(np.uint32)
    body = """
    v_lshlrev_b32_e32 v10, 2, v3
    ds_bpermute_b32 v100, v10, v2
    ds_permute_b32 v101, v10, v2
    ds_swizzle_b32 v102, v2 offset:swizzle(SWAP,8)
    ds_swizzle_b32 v103, v2 offset:swizzle(BITMASK_PERM,"0i1pp")
    ds_swizzle_b32 v104, v2 offset:swizzle(QUAD_PERM,3,1,1,0)
    ds_swizzle_b32 v105, v2 offset:swizzle(BROADCAST,8,3)
    ds_swizzle_b32 v106, v2 offset:swizzle(REVERSE,16)
    s_waitcnt lgkmcnt(0)
    """
    got = compute(body, a, index, results=7, lds=4)
    to = np.empty(LANES, int)
    to[index] = LANE
    masked = (LANE & 32) | (~LANE & 8) | 4 | (LANE & 3)
    quads = LANE // 4 * 4 + np.array([3, 1, 1, 0], np.uint32)[LANE % 4]
    wanted = [
        a[index],
        a[to],
        a[LANE ^ 8],
        a[masked],
        a[quads],
        a[LANE // 8 * 8 + 3],
        a[LANE // 16 * 16 + 15 - LANE % 16],
    ]
    assert np.array_equal(got, wanted)


def test_transposing_reads_of_gfx950() -> None:
    """Lane l of 16 gets column l of a matrix of 4 rows of 16 halves, each row in 4 lanes."""
    rows = np.arange(4 * 4 * 16, dtype=np.uint16).reshape(4, 4, 16)  # groups of lanes, rows, columns
    low, high = rows.reshape(LANES, 4).view(np.uint32).T
    body = "v_lshlrev_b32_e32 v10, 1, v0\nds_write2_b32 v10, v2, v3 offset0:0 offset1:1\ns_waitcnt lgkmcnt(0)\n"
    body += "ds_read_b64_tr_b16 v[100:101], v10\ns_waitcnt lgkmcnt(0)"
    got = compute(body, low.copy(), high.copy(), results=2, lds=512, chip="gfx950")
    found = np.ascontiguousarray(got.T).view(np.uint16).reshape(4, 16, 4)
    assert np.array_equal(found, rows.transpose(0, 2, 1))
    with pytest.raises(HazardError, match="which 8 does not divide"):
        compute("v_mov_b32_e32 v10, 4\nds_read_b64_tr_b16 v[100:101], v10", chip="gfx950", lds=512)


TO_LDS = """
s_mov_b64 s[8:9], s[2:3]
s_mov_b32 s10, 256
s_mov_b32 s11, 0x27000
s_mov_b32 m0, 512
buffer_load_dword v1, s[8:11], 0 offen lds
{wait}
ds_read_b32 v2, v1 offset:512
s_waitcnt lgkmcnt(0)
global_store_dword v1, v2, s[4:5]
"""


def test_loads_into_lds_arrive_when_they_are_waited_for() -> None:
    data, out = words(1), words(2)
    launch(kernel_text(PROLOGUE + TO_LDS.format(wait="s_waitcnt vmcnt(0)"), lds=1024), [data, out])
    assert np.array_equal(out, data)
    launch(kernel_text(PROLOGUE + TO_LDS.format(wait=""), lds=1024), [data, out])
    assert set(out.tolist()) == {0xFFFFFFFF}


def test_private_memory() -> None:
    body = (
        "scratch_store_dword off, v0, off offset:8\nv_mov_b32_e32 v10, 4\n"
        "scratch_load_dword v100, v10, off offset:4\ns_waitcnt vmcnt(0)"
    )
    text = PROLOGUE + body + "\nglobal_store_dword v1, v100, s[4:5]"
    out = words(2)
    launch(kernel_text(text, private=16), [words(1), out])
    assert np.array_equal(out, LANE)
    with pytest.raises(HazardError, match="private memory at 16, of 16 bytes"):
        launch(kernel_text(text.replace("offset:8", "offset:16"), private=16), [words(1), out])


def test_scalar_offsets_into_private_memory_count_all_lanes() -> None:
    # As spills behind 4095 bytes are addressed: a row of words of 64 lanes, the third one, is the lane's bytes 8 to 11.
    descriptor = "s_mov_b32 s10, 0x200\n"
    body = (
        descriptor + "buffer_store_dword v0, off, s[{d}], s10\n"
        "buffer_load_dword v3, off, s[{d}], 0 offset:8\ns_waitcnt vmcnt(0)\nglobal_store_dword v1, v3, s[{o}]"
    )
    text = kernel_text(
        "s_load_dwordx4 s[12:15], s[4:5], 0x0\nv_and_b32_e32 v0, 0x3ff, v0\nv_lshlrev_b32_e32 v1, 2, v0\n"
        "s_waitcnt lgkmcnt(0)\n" + body.format(d="0:3", o="14:15"),
        private=16,
    ).replace("user_sgpr_count 2\n", "user_sgpr_count 6\n\t\t.amdhsa_user_sgpr_private_segment_buffer 1\n")
    out = words(2)
    launch(text, [words(1), out])
    assert np.array_equal(out, LANE)
    with pytest.raises(HazardError, match="no row of words"):
        launch(text.replace("0x200", "0x208"), [words(1), out])


TWO_WAVES = (
    PROLOGUE
    + """
ds_write_b32 v1, v0
{first}
v_xor_b32_e32 v2, 0x100, v1
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
{second}
ds_write_b32 v1, v3
global_store_dword v1, v3, s[4:5]
"""
)
BARRIER = "s_waitcnt lgkmcnt(0)\ns_barrier"


def _two_waves(text: str) -> np.ndarray:
    out = np.zeros(128, np.uint32)
    launch(kernel_text(text, items=128, lds=512), [words(1), out])
    return out


def test_waves_exchange_values_through_lds() -> None:
    assert np.array_equal(_two_waves(TWO_WAVES.format(first=BARRIER, second=BARRIER)), np.arange(128) ^ 64)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("s_waitcnt lgkmcnt(0)", BARRIER, "is read that wave|is written that another wave touched"),
        (BARRIER, "", "is read that wave 0 wrote since the last barrier"),
        ("s_barrier", BARRIER, "a barrier while the wave's own LDS writes are under way"),
    ],
)
def test_races_are_found(first: str, second: str, message: str) -> None:
    with pytest.raises(HazardError, match=message):
        _two_waves(TWO_WAVES.format(first=first, second=second))


def test_a_barrier_in_a_branch_that_depends_on_the_wave_is_found() -> None:
    body = PROLOGUE + "v_readfirstlane_b32 s10, v0\ns_cmp_eq_u32 s10, 0\ns_cbranch_scc0 .END\ns_barrier\n.END:\ns_nop 0"
    with pytest.raises(HazardError, match=r"some waves of a workgroup end \(1\) while others wait \(1\)"):
        _two_waves(body)


def test_lds_outside_what_was_asked_for() -> None:
    with pytest.raises(HazardError, match="LDS address 252 of 252 bytes"):
        compute("ds_write_b32 v0, v0", lds=252)


def test_atomics() -> None:
    a = floats(1)
    body = PROLOGUE + (
        "v_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 1\nglobal_atomic_add v4, v2, v3, s[4:5] sc0\n"
        "global_load_dword v5, v1, s[2:3]\n"
        "s_waitcnt vmcnt(0)\nglobal_atomic_add_f32 v2, v5, s[4:5] offset:4\nv_lshl_add_u32 v1, v4, 2, 8\n"
        "global_store_dword v1, v4, s[4:5]"
    )
    out = np.zeros(LANES + 2, np.uint32)
    launch(kernel_text(body), [a, out])
    assert out[0] == LANES
    assert out[1:2].view(np.float32)[0] == pytest.approx(a.sum(dtype=np.float64), rel=1e-4)
    assert np.array_equal(out[2:], LANE)


def test_workgroups_are_numbered() -> None:
    body = PROLOGUE + "s_lshl_b32 s10, s2, 2"
    body = (
        "s_mov_b32 s20, s2\n"
        + PROLOGUE
        + (
            "s_lshl_b32 s21, s20, 8\nv_add_u32_e32 v1, s21, v1\nv_mov_b32_e32 v2, s20\n"
            "global_store_dword v1, v2, s[4:5]"
        )
    )
    out = np.zeros(3 * LANES, np.uint32)
    launch(kernel_text(body), [words(1), out], groups=3)
    assert np.array_equal(out, np.repeat([0, 1, 2], LANES))


def test_code_without_an_end_is_found() -> None:
    text = kernel_text("s_nop 0").replace("\ts_endpgm\n", "")
    with pytest.raises(HazardError, match="ends without s_endpgm"):
        launch(text, [words(1), words(2)])


@pytest.mark.parametrize(
    "text",
    [
        "buffer_load_dword v2, v1, s[8:11], 0 idxen",
        "buffer_load_format_x v2, v1, s[8:11], 0 offen",
        "image_load v2, v1, s[8:15]",
    ],
)
def test_other_accesses_are_named(text: str) -> None:
    with pytest.raises(UnmodelledError) as caught:
        compute(text)
    assert text in str(caught.value)


def test_a_vector_load_may_pass_the_end_of_the_lds_asked_for() -> None:
    """Chips allocate it in blocks; what nobody may write is NaN."""
    body = "v_mov_b32_e32 v10, 248\nds_write_b32 v10, v2\ns_waitcnt lgkmcnt(0)\nds_read_b64 v[100:101], v10"
    got = compute(body, words(1), results=2, lds=252)
    assert got[1].tolist() == [0xFFFFFFFF] * LANES
    with pytest.raises(HazardError, match="LDS address 252 of 252 bytes"):
        compute("v_mov_b32_e32 v10, 252\nds_write_b32 v10, v2", words(1), lds=252)
    with pytest.raises(HazardError, match="LDS address 256 of 252 bytes"):
        compute("v_mov_b32_e32 v10, 0x100\nds_read_b32 v100, v10", lds=252)


@pytest.mark.parametrize(
    ("kind", "number", "comes"),
    [("global", 63, False), ("global", 64, True), ("lds", 15, False), ("lds", 16, True)],
)
def test_counters_of_waits_have_an_end(kind: str, number: int, comes: bool) -> None:
    # 6 bits count what memory owes, 4 what LDS does: one more waits for the oldest.
    load = "global_load_dword v{}, v1, s[2:3]" if kind == "global" else "ds_read_b32 v{}, v1"
    loads = "\n".join(load.format(10 + each) for each in range(number))
    body = f"""
    s_load_dwordx4 s[2:5], s[0:1], 0x0
    v_and_b32_e32 v0, 0x3ff, v0
    v_lshlrev_b32_e32 v1, 2, v0
    v_mov_b32_e32 v2, v0
    ds_write_b32 v1, v2
    s_waitcnt lgkmcnt(0)
    {loads}
    v_mov_b32_e32 v3, v10
    s_waitcnt vmcnt(0) lgkmcnt(0)
    global_store_dword v1, v3, s[4:5]
    """
    out = np.zeros(LANES, np.uint32)
    text = kernel_text(body, lds=4 * LANES)
    if not comes:
        with pytest.raises(HazardError, match="before what was loaded has come"):
            launch(text, [LANE, out])
        return
    launch(text, [LANE, out])
    assert np.array_equal(out, LANE)


ATOMICS = (
    PROLOGUE
    + """
v_mov_b32_e32 v5, 0
{first}
ds_add_u32 v5, v0
s_waitcnt lgkmcnt(0)
{second}
ds_read_b32 v3, v5
s_waitcnt lgkmcnt(0)
global_store_dword v1, v3, s[4:5]
"""
)


def test_atomics_of_waves_may_meet_but_nothing_else() -> None:
    zero = "ds_write_b32 v5, v5\ns_waitcnt lgkmcnt(0)"
    one_writes = "v_cmp_gt_u32_e32 vcc, 64, v0\ns_and_saveexec_b64 s[10:11], vcc\n{}\ns_mov_b64 exec, s[10:11]"
    one_writes = one_writes.format(zero)
    right = _two_waves(ATOMICS.format(first=f"{one_writes}\n{BARRIER}", second=BARRIER))
    assert set(right.tolist()) == {sum(range(128))}
    with pytest.raises(HazardError, match="is changed that another wave touched since the last barrier"):
        _two_waves(ATOMICS.format(first=f"{one_writes}\n{BARRIER}", second=""))
    last_reads = "v_cmp_lt_u32_e32 vcc, 63, v0\ns_and_saveexec_b64 s[10:11], vcc"
    with pytest.raises(HazardError, match="is read that several waves changed since the last barrier"):
        _two_waves(ATOMICS.format(first=f"{one_writes}\n{BARRIER}", second=last_reads))
    with pytest.raises(HazardError, match="is changed that another wave touched since the last barrier"):
        _two_waves(ATOMICS.format(first=one_writes, second=BARRIER))


@pytest.mark.parametrize("last", ["0", "0x7000", "0x20000", "0x827000", "0x40027000"])
def test_descriptors_of_another_type_or_format_are_named(last: str) -> None:
    text = kernel_text(RANGE.format(size=256, base=0, offset=0, extra="0").replace("0x27000", last))
    with pytest.raises(UnmodelledError, match="a buffer whose last word is"):
        launch(text, [words(1), np.zeros((LANES, 2), np.uint32)])


@pytest.mark.parametrize(("stride", "message"), [("0x40000", "stride"), ("0x80000000", "swizzle")])
def test_descriptors_with_a_stride_are_named(stride: str, message: str) -> None:
    text = RANGE.format(size=256, base=0, offset=0, extra="0")
    text = text.replace("s_mov_b32 s10", f"s_or_b32 s9, s9, {stride}\ns_mov_b32 s10")
    with pytest.raises(UnmodelledError, match=f"a buffer with a .*{message}"):
        launch(kernel_text(text), [words(1), np.zeros((LANES, 2), np.uint32)])


@pytest.mark.parametrize(
    ("index", "register", "message"),
    [(5, "v3", ""), (200, "v200", "an index of 200 from register 200"), (3, "v3", "before what was loaded has come")],
)
def test_indexed_registers_are_checked(index: int, register: str, message: str) -> None:
    body = (
        PROLOGUE + f"v_mov_b32_e32 v8, 1\nglobal_load_dword v6, v1, s[2:3]\ns_set_gpr_idx_on {index}, gpr_idx(SRC0)\n"
    )
    body += f"v_mov_b32_e32 v9, {register}\ns_set_gpr_idx_off"
    if not message:
        launch(kernel_text(body), [words(1), words(2)])
        return
    with pytest.raises(HazardError, match=message):
        launch(kernel_text(body), [words(1), words(2)])


def test_races_are_found_after_16_million_barriers() -> None:
    """The epochs of LDS have 24 bits: past them they begin anew."""
    body = "s_mov_b32 s10, 0x1000010\n.LOOP:\ns_barrier\ns_sub_u32 s10, s10, 1\ns_cmp_lg_u32 s10, 0\n"
    body += "s_cbranch_scc1 .LOOP\nds_write_b32 v0, v0"
    with pytest.raises(HazardError, match="another wave touched"):
        launch(kernel_text("v_mov_b32_e32 v0, 0\n" + body, items=128, lds=256), [words(1), words(2)])


ENDLESS = """
import numpy as np
from tests.support.gfx_kernels import kernel_text, launch
print("ready", flush=True)
launch(kernel_text({body!r}, buffers=1), [np.zeros(64, np.uint32)], groups={groups})
"""


@pytest.mark.parametrize(
    ("body", "groups"),
    [
        (".LOOP:\nv_mfma_f32_32x32x8_f16 v[16:31], v[2:3], v[4:5], v[16:31]\ns_branch .LOOP", 1),
        ("s_nop 0", (1 << 26) - 1),
    ],
)
def test_a_signal_ends_a_kernel(body: str, groups: int) -> None:
    text = ENDLESS.format(body=body, groups=groups)
    command = [sys.executable, "-c", "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
