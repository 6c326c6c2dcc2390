from __future__ import annotations

from typing import Any

import pytest

from graph_api import DataType, Graph, GraphError, NotSupportedError, PointwiseMode
from iree_bridge import compile_graph, support
from iree_bridge.compile import compiler
from iree_bridge.targets.cpu import host_arch, host_extensions, missing_features
from iree_bridge.targets.target import Target, known_targets

ADD = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


@pytest.mark.parametrize(
    ("name", "backend", "chip"),
    [
        ("gfx908", "rocm", "gfx908"),
        ("gfx90a", "rocm", "gfx90a"),
        ("gfx942", "rocm", "gfx942"),
        ("gfx950", "rocm", "gfx950"),
        ("gfx1100", "rocm", "gfx1100"),
        ("gfx1201", "rocm", "gfx1201"),
        ("mi300x", "rocm", "gfx942"),
        ("MI250X", "rocm", "gfx90a"),
        ("w7900", "rocm", "gfx1100"),
        ("sm_80", "cuda", "sm_80"),
        (" cpu ", "llvm-cpu", "host"),
    ],
)
def test_names(name: str, backend: str, chip: str) -> None:
    target = Target.parse(name)
    assert (target.backend, target.chip) == (backend, chip)
    assert str(target) == name.strip().lower()


def test_every_known_name_parses_to_a_target_of_that_name() -> None:
    assert [str(Target.parse(name)) for name in known_targets()] == list(known_targets())


@pytest.mark.parametrize("name", ["gfx90b", "gfx1102", "mi200", "sm_90", "cpu:nonsense", "", "gfx942 --flag", "cuda"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(NotSupportedError, match=r"is unknown.*; known are gfx908, .*mi300x.*sm_80"):
        Target.parse(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gfx94", " (did you mean gfx942?)"),
        ("gfx90b", " (did you mean gfx90a?)"),
        ("mi300", " (did you mean mi300x?)"),
        pytest.param(
            "x86-64-v3",
            " (did you mean cpu:x86-64-v3?)",
            marks=pytest.mark.skipif(host_arch() != "x86_64", reason="the compiler knows its own architecture"),
        ),
        ("gpu", ""),
    ],
)
def test_the_nearest_name_is_offered(name: str, hint: str) -> None:
    with pytest.raises(NotSupportedError) as caught:
        Target.parse(name)
    assert f"target '{name}' is unknown{hint}; known are" in str(caught.value)


@pytest.mark.parametrize("name", ["gfx942", "sm_80"])
def test_gpu_targets_have_the_whole_flag_set(name: str) -> None:
    flags = Target.parse(name).flags()
    for part in (
        "opt-level=O3",
        "backward-data-conv-pipeline",
        "propagate-transposes-through-conv",
        "sink-transpose-through-pad",
        "aggressive-reshape-movement",
        "split-reduction",
        "externalize-transients",
    ):
        assert sum(part in flag for flag in flags) == 1, part
    # What is right for some graphs only is a matter of iree_bridge/targets/variants.py.
    assert not any("fuse-padding-into-linalg-consumer-ops" in flag for flag in flags)
    assert not any("enable-pad-handling" in flag for flag in flags)


def test_cpu_flags() -> None:
    flags = Target.parse("cpu").flags()
    assert "--iree-llvmcpu-target-cpu=generic" in flags or host_arch() not in ("x86_64", "aarch64")
    assert "--iree-llvmcpu-stack-allocation-limit=131072" in flags
    assert "--iree-torch-externalize-transients" in flags


def test_the_host_target_records_the_processor() -> None:
    target = Target.parse("cpu")
    assert target.extensions == host_extensions() == tuple(filter(None, target.features.split(",")))
    assert missing_features(target.extensions) == ()
    assert Target.parse("gfx942").extensions == ()
    assert target == Target.parse("cpu")
    assert hash(target) == hash(Target.parse("cpu"))


@pytest.mark.skipif(host_arch() != "x86_64", reason="names of x86-64 extensions")
def test_missing_features() -> None:
    assert missing_features(["+sse2", "cmov", "x87", "64bit", "avx10.1", "-amx-tile", ""]) == ()
    assert missing_features(["sse2", "+not-an-extension"]) == ("not-an-extension",)


def _lowered(name: str) -> str:
    return compiler.lower(ADD, Target.parse(name), "executable-sources")


@pytest.mark.mlir
@pytest.mark.parametrize("name", ["mi300x", "gfx1201", "sm_80"])
def test_the_compiler_knows_the_target(name: str) -> None:
    assert f'"{Target.parse(name).chip}"' in _lowered(name)


@pytest.mark.slow
@pytest.mark.mlir
@pytest.mark.parametrize("name", known_targets())
def test_the_compiler_knows_every_target(name: str) -> None:
    target = Target.parse(name)
    ir = _lowered(name)
    # a processor is told by its extensions, each by name
    said = [f"+{extension}" for extension in target.extensions] if not target.is_gpu else [f'"{target.chip}"']
    assert [word for word in said if word not in ir] == []


@pytest.mark.parametrize("name", [None, 5, b"cpu", ["cpu"]])
def test_a_name_that_is_no_text(name: Any) -> None:
    with pytest.raises(NotSupportedError, match="a target is named by a string"):
        Target.parse(name)


@pytest.mark.parametrize(
    "fields",
    [{"backend": "q", "arch": "x"}, {"backend": "rocm", "arch": 5}, {"backend": "rocm", "arch": "--flag"}, {}, None,
     {"backend": "llvm-cpu", "arch": "not-a-processor"},
     {"backend": [], "arch": "x"}, {"backend": "rocm", "arch": "gfx942", "features": []}],
)  # fmt: skip
def test_fields_of_no_target(fields: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Target.restored(fields)


def test_what_is_no_target_or_no_graph_is_refused() -> None:
    graph = Graph(io_data_type=DataType.FLOAT)
    graph.pointwise(PointwiseMode.RELU_FWD, graph.tensor("x", dim=(2,))).set_output()
    wrong: Any = "gfx942"
    several: tuple[Any, ...] = (wrong, Target.parse(wrong), [wrong])
    for targets in several:
        with pytest.raises(NotSupportedError, match=r"Target.parse\(name\)"):
            compile_graph(graph, targets)
    with pytest.raises(NotSupportedError, match="expected a Target, got 'gfx942'"):
        support(graph, wrong)
    with pytest.raises(GraphError, match="expected a Graph, got str"):
        support(wrong, Target.parse(wrong))


@pytest.mark.parametrize("name", ["gfx942:sramecc+", "gfx942:sramecc+:xnack-", "gfx942:xnack+", "GFX942:SRAMECC-"])
def test_rocm_features_behind_a_chip(name: str) -> None:
    assert Target.parse(name) == Target.parse("gfx942")


@pytest.mark.parametrize("name", ["gfx942:", "gfx942:sramecc", "gfx942:wave32+", "mi300x:sramecc+", "sm_80:xnack+"])
def test_other_features_are_unknown(name: str) -> None:
    with pytest.raises(NotSupportedError, match="is unknown"):
        Target.parse(name)
