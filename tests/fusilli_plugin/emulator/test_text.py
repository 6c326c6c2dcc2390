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
