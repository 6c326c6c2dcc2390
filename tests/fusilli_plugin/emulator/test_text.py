"""Text that has no model raises `UnmodelledError` and names it; text that is no code raises nothing else."""

from __future__ import annotations

import random

import pytest

from fusilli_plugin.emulator import HazardError, UnmodelledError
from fusilli_plugin.emulator.assembly import parse
from tests.support.gfx_kernels import compute, kernel_text, launch, words

UNMODELLED = [
    "v_frobnicate_b32 v100, v2",
    "s_frobnicate_b32 s10, s11",
    "ds_frobnicate_b32 v2, v3",
    "v_add_f32_e64 v100, v2, v3 frob:1",
    "v_add_u32_e64 v100, v2, v3 mul:3",
    "v_add_f32_dpp v100, v2, v3 row_share:1 row_mask:0xf bank_mask:0xf",
    "v_mov_b32_dpp v100, v2 row_newbcast:40 row_mask:0xf bank_mask:0xf",
    "v_mov_b32_dpp v100, v2 quad_perm:[0,1,2,9] row_mask:0xf bank_mask:0xf",
    "v_add_f32_e32 v100, v256, v3",
    "v_add_f32_e32 v[100:101], v2, v3",
    "v_add_f32_e32 v100, v2",
    "v_add_f32_e32 v100, v2, v3, v4",
    "v_add_f32_e32 v100, ttmp3, v3",
    "v_add_f64 v[255:256], v[2:3], v[4:5]",
    "v_mov_b32_e32 v100, s110",
    "v_mov_b32_e32 v100, v[9:3]",
    "v_fma_f16 v100, v2, v3, v4 op_sel:[2,0,0,0]",
    "v_add_u16_sdwa v100, v2, v3 dst_sel:WORD_7 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
    "v_mul_f16_e32 v100, 1e9, v2",
    "ds_swizzle_b32 v100, v2 offset:swizzle(BROADCAST,0,0)",
    "ds_swizzle_b32 v100, v2 offset:swizzle(ROTATE,1)",
    "ds_read_b32 v100, v2 offset:65536",
    "ds_read2_b32 v[100:101], v2 offset0:256",
    "global_load_dword v100, v2, s[4:5] offset:4096",
    "buffer_load_dword v100, v2, s[8:11], 0 offen offset:99999999999",
    "s_load_dwordx99 s[2:100], s[0:1], 0x0",
    "s_load_dwordx2 s[105:106], s[0:1], 0x0",
    "s_waitcnt vmcnt(99999999999)",
    "s_waitcnt vscnt(0)",
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1",
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3",
    "s_cbranch_scc1 .NOWHERE",
    "s_barrier_signal -1",
    "v_cvt_sr_fp8_f32 v100, v2, v3",
    "V_MOV_B32_E32 v100, v2",
    # not a register where one must be, or of the wrong kind: another's would be used
    "s_load_dword s10, v[200:201], 0x0",
    "s_load_dwordx2 s[10:11], exec, 0x0",
    "s_load_dwordx2 exec, s[0:1], 0x0",
    "s_mov_b32 5, s2",
    "s_mov_b32 scc, s2",
    "v_cmp_eq_u32_e64 5, v2, v3",
    "v_readlane_b32 s10, s5, 3",
    "v_readfirstlane_b32 s10, s5",
    "v_writelane_b32 s3, s5, 3",
    "v_pk_add_f16 s4, v2, v3",
    "v_fma_mix_f32 s4, v2, v3, v4",
    "v_swap_b32 v2, 5",
    "v_mad_u64_u32 s[10:11], vcc, v2, v3, v[4:5]",
    "buffer_load_dword v100, v2, off, 0 offen",
    # operands too few or too many
    "ds_bpermute_b32 v100, v2",
    "ds_swizzle_b32 v100, v2, v3 offset:swizzle(SWAP,8)",
    "ds_add_u32 v2",
    "v_div_fmas_f32 v100, v2, v3",
    "v_readfirstlane_b32 s10, v2, v3",
    "v_addc_co_u32_e32 v100, vcc, v2, v3",
    # hardware ignores output modifiers while the mode is that of IEEE numbers
    "v_mul_f32_e64 v100, v2, v3 mul:2",
    "v_cvt_f32_fp8_sdwa v100, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0",
    "s_add_u32 s10, s10, table@rel32@lo+400",
    "exp mrt0 v0, v0, v0, v0",
]


@pytest.mark.parametrize("text", UNMODELLED)
def test_what_has_no_model_is_named(text: str) -> None:
    with pytest.raises(UnmodelledError) as caught:
        compute(text, lds=64)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".amdhsa_kernarg_size 16", ""),
        (".amdhsa_kernarg_size 16", ".amdhsa_kernarg_size 8"),
        (".amdhsa_group_segment_fixed_size 0", ".amdhsa_group_segment_fixed_size 99999999"),
        (".amdhsa_user_sgpr_count 2", ".amdhsa_user_sgpr_count 99"),
        (".amdhsa_user_sgpr_count 2", ".amdhsa_user_sgpr_count 2\n\t\t.amdhsa_fp16_overflow 1"),
        (".amdhsa_kernarg_size 16", ".amdhsa_kernarg_size most"),
        (".amdhsa_group_segment_fixed_size 0", ".amdhsa_group_segment_fixed_size 65537"),
        (".amdhsa_private_segment_fixed_size 0", ".amdhsa_private_segment_fixed_size 131073"),
        ("workgroup_id_x 1", "workgroup_id_x 1000000\n\t\t.amdhsa_system_sgpr_workgroup_id_y 1"),
        ("workgroup_id_x 1", "workgroup_id_x 1\n\t\t.amdhsa_user_sgpr_kernarg_preload_length 5"),
        ("workgroup_id_x 1", "workgroup_id_x 1\n\t\t.amdhsa_float_round_mode_32 3"),
        ("workgroup_id_x 1", "workgroup_id_x 1\n\t\t.amdhsa_float_denorm_mode_16_64 0"),
        ("workgroup_id_x 1", "workgroup_id_x 1\n\t\t.amdhsa_dx10_clamp 0"),
        ("denorm_mode_32 3", "denorm_mode_32 1"),
        ("\ts_nop 0\n", "\ts_nop 0\n.L0:\n\ts_nop 0\n.L0:\n"),
        ("tried:\n", "\ts_nop 0\ntried:\n"),
        ("\ts_nop 0\n", "\ts_nop 0" + ", 0" * 1000 + "\n"),
        (".value_kind: global_buffer", ".value_kind: hidden_heap"),
        (".value_kind: global_buffer", ""),
        (".size: 8", ".size: 0"),
        (".name: tried", ".name: other"),
        ("      - 64\n", "      - 0\n"),
        ("      - 64\n", "      - 64000\n"),
        ("\t.amdgpu_metadata\n", "\n"),
    ],
)
def test_a_kernel_that_says_too_little_of_itself_or_too_much(old: str, new: str) -> None:
    text = kernel_text("s_nop 0")
    assert old in text
    with pytest.raises((UnmodelledError, KeyError)) as caught:
        launch(text.replace(old, new, 2), [words(1), words(2)])
    assert caught.type is UnmodelledError or "tried" in str(caught.value)


@pytest.mark.parametrize("before", ["", ".L0: ", "tried2: .L1: "])
def test_no_line_is_skipped(before: str) -> None:
    with pytest.raises(UnmodelledError, match="opcode v_frobnicate_b32"):
        launch(kernel_text("s_nop 0").replace("\ts_nop 0", f"{before}v_frobnicate_b32 v1"), [words(1), words(2)])


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(UnmodelledError, match=r"\['tried'\] are there twice"):
        parse(kernel_text("s_nop 0") + kernel_text("s_nop 1"))


@pytest.mark.parametrize("groups", [0, -1, 1 << 26, 1 << 31, 1 << 32])
def test_a_grid_that_no_launch_may_ask_for(groups: int) -> None:
    with pytest.raises(UnmodelledError, match="a grid of"):
        launch(kernel_text("s_nop 0"), [words(1), words(2)], groups=groups)


def test_lds_is_as_large_as_that_of_the_chip() -> None:
    text = kernel_text("s_nop 0", lds=160 << 10)
    launch(text, [words(1), words(2)], chip="gfx950")
    with pytest.raises(UnmodelledError, match="163840 bytes of LDS, gfx942 has 65536"):
        launch(text, [words(1), words(2)])


@pytest.mark.parametrize(
    ("body", "found"),
    [("v_mov_b32_e32 v39, 1", False), ("v_mov_b32_e32 v40, 1", True), ("v_accvgpr_write_b32 a7, 1", False),
     ("v_accvgpr_write_b32 a8, 1", True), ("v_add_f64 v[38:39], v[0:1], v[38:39]", False),
     ("v_add_f64 v[0:1], v[0:1], v[39:40]", True)],
)  # fmt: skip
def test_registers_that_a_kernel_does_not_ask_for_are_not_its_own(body: str, found: bool) -> None:
    """Of 41 registers 40 are vectors; 48 are allocated, so that 8 are accumulators."""
    told = "\t\t.amdhsa_next_free_vgpr 41\n\t\t.amdhsa_accum_offset 40\n\t\t.amdhsa_user_sgpr_count"
    text = kernel_text(body).replace("\t\t.amdhsa_user_sgpr_count", told)
    if not found:
        launch(text, [words(1), words(2)])
        return
    with pytest.raises(HazardError, match="uses registers up to"):
        launch(text, [words(1), words(2)])


_WORDS = [
    "v_add_f32", "v_mov_b32_dpp", "v_mfma_f32_16x16x16_f16", "v_pk_fma_f16", "ds_read2_b32", "global_load_dwordx4",
    "buffer_load_dword", "s_load_dwordx8", "s_waitcnt", "v_cndmask_b32_e64", "v_cvt_pk_f32_fp8_sdwa",
    "ds_swizzle_b32", "v_readlane_b32", "scratch_load_dword", "v_div_scale_f32", "global_atomic_cmpswap",
    "s_bfe_u64", "v_cmp_lt_u16", "v_lshl_add_u64", "v_add_co_u32_e32", "ds_read_b64_tr_b16", "s_set_gpr_idx_on",
    "v_fma_mix_f32", "v_permlane32_swap_b32",
]  # fmt: skip
_PARTS = [
    "v0", "v255", "v[2:3]", "v[254:257]", "v[4:1]", "a300", "a[0:3]", "s105", "s[2:5]", "s[100:103]", "vcc", "exec",
    "off", "-v1", "|v2|", "-|s3|", "1.0", "0x7fffffff", "-99999999999999999999999", "1e400", "neg(", "sext(v1)", "",
    "]", "offen", "offset:12", "offset:-1", "offset:x", "op_sel:[1,1,1]", "op_sel:[]", "row_shr:17", "row_bcast:7",
    "quad_perm:[]", "dst_sel:BYTE_9", "cbsz:12", "gpr_idx(SRC0)", "vmcnt(0)", "lds", "clamp", "mul:9",
    "src0_sel:WORD_1", "scc", "m0", "row_mask:0xf", "offset:swizzle(SWAP,77)", "offset:swizzle(REVERSE,0)",
    "bitop3:0x300",
]  # fmt: skip


def test_any_text_raises_only_what_is_promised() -> None:
    """A thousand lines of words in any order: they run, are a hazard, or have no model."""
    rng = random.Random(7)
    for _ in range(1000):
        joints = rng.choices((", ", " "), (4, 1), k=8)
        parts = [part + joint for part, joint in zip(rng.choices(_PARTS, k=rng.randint(0, 6)), joints, strict=False)]
        line = f"{rng.choice(_WORDS)} {''.join(parts)}".strip(", ")
        try:
            launch(kernel_text(line, lds=64, private=16), [words(1), words(2)])
        except (UnmodelledError, HazardError):
            continue


def test_any_damage_to_a_whole_text_raises_only_what_is_promised() -> None:
    rng = random.Random(8)
    whole = kernel_text("s_load_dwordx2 s[2:3], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v1, s2")
    for _ in range(300):
        start = rng.randrange(len(whole))
        damaged = whole[:start] + rng.choice(["", "x", "\n", " 9", ": ", "- "]) + whole[start + rng.randint(0, 12) :]
        try:
            if "tried" in parse(damaged):
                launch(damaged, [words(1), words(2)])
        except (UnmodelledError, HazardError):
            continue
