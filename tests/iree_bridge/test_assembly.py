from __future__ import annotations

from pathlib import Path

from iree_bridge.compile.assembly import parse_assembly, read_dispatches

ASSEMBLY = """
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
\t.text
\t.globl\tmain$async_dispatch_0_matmul
main$async_dispatch_0_matmul:
\ts_load_dwordx2 s[2:3], s[0:1], 0x0
.LBB0_1:
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]
\tv_mfma_f32_16x16x16_f16 v[8:11], v[4:5], v[6:7], v[8:11]
\tscratch_store_dword off, v1, off offset:4
\tscratch_load_dword v1, off, off offset:4
\ts_endpgm
second:
\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]
\ts_endpgm
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     4
    .args:
      - .address_space:  global
        .offset:         0
        .vgpr_count:     99
    .group_segment_fixed_size: 26112
    .max_flat_workgroup_size: 256
    .name:           'main$async_dispatch_0_matmul'
    .private_segment_fixed_size: 8
    .sgpr_count:     22
    .sgpr_spill_count: 1
    .vgpr_count:     112
    .vgpr_spill_count: 2
    .wavefront_size: 64
  - .args: []
    .name:           second
    .vgpr_count:     7
    .wavefront_size: 32
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
    .vgpr_count:     1
...
"""


def test_kernels_of_a_file() -> None:
    first, second = parse_assembly(ASSEMBLY)
    assert first.name == "main$async_dispatch_0_matmul"
    assert (first.vgprs, first.agprs, first.sgprs) == (112, 4, 22)
    assert (first.vgpr_spills, first.sgpr_spills) == (2, 1)
    assert (first.lds, first.scratch, first.scratch_instructions) == (26112, 8, 2)
    assert (first.workgroup, first.wavefront) == (256, 64)
    assert first.matrix == {"v_mfma_f32_16x16x16_f16": 2}
    assert (first.instructions, second.instructions) == (6, 2)
    assert (second.name, second.vgprs, second.wavefront) == ("second", 7, 32)
    assert second.matrix == {"v_wmma_f32_16x16x16_f16": 1}


def test_files_are_read_in_the_order_of_their_dispatches(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        text = ASSEMBLY.replace("dispatch_0", f"dispatch_{number}")
        (tmp_path / f"module_main_dispatch_{number}_rocm.rocmasm").write_text(text)
    names = [kernel.name for kernel in read_dispatches(tmp_path) if kernel.name != "second"]
    assert names == [f"main$async_dispatch_{number}_matmul" for number in (0, 2, 10)]


def test_text_without_metadata_has_no_kernels() -> None:
    assert parse_assembly("main:\n\ts_endpgm\n") == []
    assert parse_assembly("") == []


LOOPS = """
	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
kernel:
	s_mov_b32 s0, 0
.LBB0_1:
	v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]
	s_cbranch_scc0 .LBB0_9
.LBB0_2:                                ; =>  This Inner Loop Header: Depth=2
	ds_read_b64 v[0:1], v2
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]
	v_mfma_f32_16x16x16_f16 v[8:11], v[4:5], v[6:7], v[8:11]
	; a comment
	s_cbranch_scc1 .LBB0_2
.LBB0_3:
	v_add_u32_e32 v1, v2, v3
	s_cbranch_scc1 .LBB0_3
	s_branch .LBB0_1
.LBB0_9:
	s_endpgm
amdhsa.kernels:
  - .name:           kernel
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
"""


def test_the_main_loop_is_the_innermost_with_matrix_instructions() -> None:
    (kernel,) = parse_assembly(LOOPS)
    assert kernel.matrix == {"v_mfma_f32_16x16x16_f16": 3}
    assert kernel.loop == {"ds_read_b64": 1, "s_waitcnt": 1, "v_mfma_f32_16x16x16_f16": 2, "s_cbranch_scc1": 1}
    assert kernel.others_per_matrix == 1.5


def test_without_a_loop_the_code_between_matrix_instructions_counts() -> None:
    straight = LOOPS.replace("\ts_branch .LBB0_1\n", "").replace("\ts_cbranch_scc1 .LBB0_2\n", "")
    (kernel,) = parse_assembly(straight)
    assert kernel.loop == {
        "v_mfma_f32_16x16x16_f16": 3, "s_cbranch_scc0": 1, "ds_read_b64": 1, "s_waitcnt": 1,
    }  # fmt: skip
    assert kernel.others_per_matrix == 1.0


def test_a_kernel_without_matrix_instructions_has_no_main_loop() -> None:
    (kernel,) = parse_assembly(LOOPS.replace("v_mfma_f32_16x16x16_f16", "v_pk_fma_f16"))
    assert kernel.loop == kernel.matrix == {}
    assert kernel.others_per_matrix is None


def test_files_that_were_joined_are_read_one_by_one() -> None:
    first, second, third = parse_assembly(ASSEMBLY + LOOPS)
    assert [each.name for each in (first, second, third)] == ["main$async_dispatch_0_matmul", "second", "kernel"]
    assert (first.matrix, third.others_per_matrix) == ({"v_mfma_f32_16x16x16_f16": 2}, 1.5)
