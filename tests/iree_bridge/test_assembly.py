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
