"""Which flags a graph is compiled with on top of its target's."""

from __future__ import annotations

import pytest

from fusilli_plugin.checks.selftest import GRAPHS
from iree_bridge import Target
from iree_bridge.compiler import compile_code
from iree_bridge.variants import choose

CUDA = Target.parse("sm_80")
TENSOR_CORES = (b"mma.sync", b"wmma.")


@pytest.mark.parametrize("name", ["conv 1x1+bias+ReLU HALF", "conv 3x3+bias+ReLU HALF", "batched products BFLOAT16"])
@pytest.mark.iree_cpu
def test_code_for_cuda_has_no_tensor_core_instructions(name: str) -> None:
    """With them float16 layers were wrong on a real GPU."""
    code = compile_code(GRAPHS[name](), CUDA).vmfb
    assert b".target sm_80" in code
    assert not [word for word in TENSOR_CORES if word in code]


@pytest.mark.iree_cpu
def test_attention_for_cuda_needs_one_of_the_pipelines() -> None:
    graph = GRAPHS["causal attention HALF"]()
    assert "--iree-codegen-llvmgpu-use-vector-distribution=false" not in choose(graph, CUDA).flags
    assert b".target sm_80" in compile_code(graph, CUDA).vmfb


def test_products_with_ragged_rows_do_without_buffer_instructions() -> None:
    target = Target.parse("gfx942")
    ragged, whole = (
        choose(GRAPHS[name](), target) for name in ("product HALF", "conv 1x1+bias+add+ReLU, channels last HALF")
    )
    assert ragged.flags == whole.spare_flags == ("--iree-rocdl-enable-buffer-instructions=false",)
    assert ragged.spare_flags == whole.flags == ()
