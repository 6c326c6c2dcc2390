"""What is compiled for a machine follows from what its kernel reports, and is loaded by it; processors are recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from graph_api import DataType, Graph
from iree_bridge import Options, Target
from iree_bridge.compile import compiler
from iree_bridge.targets import cpu, extensions
from iree_bridge.targets.cpu import host_arch, missing_features
from iree_bridge.targets.extensions import PROCESSORS
from tests.support.processors import RECORDED, arch_of, forget, run_as_on

V3 = PROCESSORS["x86-64-v3"]
V4 = PROCESSORS["x86-64-v4"]
ICELAKE = PROCESSORS["icelake-server"]
N1 = {"fp-armv8", "neon", "crc", "lse", "rdm", "rcpc", "fullfp16", "dotprod"}
V1 = N1 | {"jsconv", "complxnum", "rcpc-immo", "fp16fml", "flagm", "bf16", "i8mm"}
# By hand from the processors' manuals: what the compiler may be told, and the bytes of a vector.
EXPECTED: dict[str, tuple[frozenset[str] | set[str], int]] = {
    "westmere": (PROCESSORS["x86-64-v2"], 16),
    "piledriver": (
        PROCESSORS["x86-64-v2"] | {"avx", "f16c", "fma", "fma4", "xop", "tbm", "bmi", "lzcnt", "sse4a"}, 32,
    ),
    "haswell": (V3, 32),
    "zen2": (V3 | {"sse4a"}, 32),
    "zen4": (ICELAKE | {"sse4a", "avx512bf16"}, 64),
    "zen5-without-rdseed": (ICELAKE | {"sse4a", "avx512bf16", "avxvnni", "avx512vp2intersect"}, 64),
    "skylake-sp": (V4, 64),
    "skylake-sp-in-kvm-without-avx512": (V3, 32),
    # AVX-512 includes F16C, which this hypervisor hides
    "skylake-sp-in-a-vm-with-holes": (V3 - {"f16c"}, 32),
    "sapphire-rapids": (ICELAKE | {"avxvnni", "avx512bf16", "avx512fp16"}, 64),
    "unknown-of-the-future": (
        ICELAKE | {"avxvnni", "avx512bf16", "avx512fp16", "avxifma", "avxneconvert", "avxvnniint8", "avxvnniint16"}, 64,
    ),
    "cortex-a72": ({"fp-armv8", "neon", "crc"}, 16),
    "neoverse-n1": (N1, 16),
    "neoverse-v1": (V1 | {"sve"}, 16),
    "neoverse-v1-without-sve": (V1, 16),
}  # fmt: skip
_WIDE = {16: "xmm", 32: "ymm", 64: "zmm"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that makes this the machine of a recorded processor."""
    with monkeypatch.context() as patch:
        yield lambda name: run_as_on(RECORDED[name], patch)
    forget()


def seldom(often: Sequence[str], arch: str) -> list[Any]:
    """The recordings of an architecture; those that are not named are for the slow tests."""
    found = [name for name in EXPECTED if arch_of(RECORDED[name]) == arch]
    return [name if name in often else pytest.param(name, marks=pytest.mark.slow) for name in found]


def product(n: int = 64) -> Graph:
    graph = Graph("product", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    graph.matmul(graph.tensor("a", dim=(n, n)), graph.tensor("b", dim=(n, n))).set_output()
    return graph.validate()


def test_there_is_an_answer_for_each_recording() -> None:
    assert EXPECTED.keys() == RECORDED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_what_the_compiler_is_told(name: str, machine: Callable[[str], None]) -> None:
    machine(name)
    target = Target.parse("cpu")
    told, vector_bytes = EXPECTED[name]
    assert set(target.extensions) == told
    assert target.vector_bytes == vector_bytes
    assert "--iree-llvmcpu-target-cpu=generic" in target.flags()
    assert target.needs(target.flags()) == target.extensions
    assert missing_features(target.needs(target.flags())) == ()
    assert Target.restored(asdict(target)) == target


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("hidden", ["each known flag"])
def test_whatever_the_kernel_hides_is_not_used(name: str, hidden: str) -> None:
    arch = arch_of(RECORDED[name])
    flags = cpu.cpuinfo_flags(RECORDED[name].read_text())
    table = extensions._TABLES[arch]
    demanded = extensions._DEMANDED[arch]
    for flag in ({flag for each in table.values() for flag in each.flags.split()} & flags) - demanded:
        told = extensions.told(flags - {flag}, arch)
        assert told is not None
        for extension in told:
            assert flag not in table[extension].flags.split()
            assert set(table[extension].includes.split()) <= set(told)


@pytest.mark.a_few("skylake-sp-in-a-vm-with-holes")
@pytest.mark.mlir
@pytest.mark.parametrize("name", seldom(["westmere", "zen5-without-rdseed", "skylake-sp-in-a-vm-with-holes"], "x86_64"))
@pytest.mark.skipif(host_arch() != "x86_64", reason="assembly of x86-64")
def test_code_has_the_vectors_of_the_machine_and_no_wider_ones(
    name: str, machine: Callable[[str], None], tmp_path: Path
) -> None:
    machine(name)
    told, vector_bytes = EXPECTED[name]
    assembly = assembly_of(product(), Target.parse("cpu"), tmp_path)
    found = set(re.findall(r"%([xyz]mm)\d", assembly))
    assert _WIDE[vector_bytes] in found
    assert not found & {register for size, register in _WIDE.items() if size > vector_bytes}
    assert ("vfmadd" in assembly) == ("fma" in told)
    assert ("%k1" in assembly) <= ("avx512f" in told)


@pytest.mark.mlir
@pytest.mark.parametrize("name", seldom(["neoverse-v1"], "aarch64"))
@pytest.mark.skipif(host_arch() != "x86_64", reason="the other way round, this would have to be told x86-64")
def test_code_for_arm(name: str, machine: Callable[[str], None], tmp_path: Path) -> None:
    machine(name)
    triple = "--iree-llvmcpu-target-triple=aarch64-linux-gnu"
    assembly = assembly_of(product(), Target.parse("cpu"), tmp_path, triple)
    assert re.search(r"\bv\d+\.4s\b", assembly)
    assert not re.search(r"\bz\d+\.[bhsd]\b", assembly) or "sve" in EXPECTED[name][0]


def assembly_of(graph: Graph, target: Target, folder: Path, *flags: str) -> str:
    dump = f"--iree-hal-dump-executable-intermediates-to={folder}/dump"
    options = Options(cache_dir=folder / "cache", extra_flags=(dump, *flags))
    compiler.compile_code(graph, target, options)
    return "\n".join(path.read_text() for path in (folder / "dump").glob("*.s"))


def models_of_llvm(name: str) -> set[str]:
    """The extensions that LLVM attributes to a processor."""
    add = (
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        "%y = arith.addf %x, %x : tensor<4xf32>\nreturn %y : tensor<4xf32>\n}"
    )
    flags = (f"--iree-llvmcpu-target-cpu={name}", "--iree-llvmcpu-target-cpu-features=+cx8")
    ir = compiler.lower(add, Target.parse("cpu:generic"), "executable-sources", replace(OPTIONS, extra_flags=flags))
    return {feature[1:] for text in re.findall(r'cpu_features = "([^"]*)"', ir) for feature in text.split(",")}


OPTIONS = Options(workers=1)


@pytest.mark.a_few("x86-64-v3", "haswell", "znver4", "sapphirerapids")
@pytest.mark.mlir
@pytest.mark.skipif(host_arch() != "x86_64", reason="the compiler knows the processors of its own architecture")
@pytest.mark.parametrize("name", [name for name in PROCESSORS if name not in ("generic", "diamondrapids")])
def test_a_processor_is_what_llvm_takes_it_for(name: str) -> None:
    """Of the extensions that code may use; the names come from the same place, so none is misspelt."""
    known = models_of_llvm(name)
    assert "cx8" in known
    assert PROCESSORS[name] == (set(extensions._X86) & known) | {"cmov", "cx8"}


@pytest.mark.thorough
@pytest.mark.mlir
@pytest.mark.skipif(host_arch() != "x86_64", reason="x86-64")
def test_every_extension_is_known_to_the_compiler(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """LLVM prints a line for a name that it does not know, and goes on."""
    for arch, triple in (("x86_64", ()), ("aarch64", ("--iree-llvmcpu-target-triple=aarch64-linux-gnu",))):
        names = [*extensions._TABLES[arch], *(["not-an-extension"] if arch == "x86_64" else [])]
        features = "--iree-llvmcpu-target-cpu-features=" + ",".join(f"+{name}" for name in names)
        recipe = compiler.Recipe(
            Target.parse("cpu"),
            ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic", features, *triple),
        )
        ir = compiler.EmittedIr(ADD, ADD)
        reply = compiler._request_compile(ir, compiler._Job("names", recipe, Options(cache_dir=tmp_path / "cache")))
        unknown = re.findall(r"'\+?([\w.-]+)' is not a recognized feature", reply.stderr)
        assert set(unknown) == ({"not-an-extension"} if arch == "x86_64" else set())


ADD = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def test_lists_of_earlier_versions_are_judged_by_what_code_can_use(machine: Callable[[str], None]) -> None:
    """They hold all that LLVM attributes to the processor: here Zen 5's, on a kernel that hides rdseed."""
    machine("zen5-without-rdseed")
    had = [*PROCESSORS["znver5"], "rdseed", "adx", "prefetchi", "clzero", "64bit", "x87", "+avx10.1", "-amx-tile", ""]
    assert missing_features(had) == ()
    assert missing_features([*had, "avx512fp16", "avx10.7"]) == ("avx10.7", "avx512fp16")
    machine("neoverse-n1")
    flags = cpu.cpuinfo_flags(RECORDED["neoverse-n1"].read_text())
    assert missing_features(flags) == ()  # on Arm, lists were the kernel's
    assert missing_features(flags | {"sve"}) == ("sve",)


def test_targets_of_earlier_versions(machine: Callable[[str], None]) -> None:
    machine("zen2")
    kernel = "abm,adx,aes,avx,avx2,bmi1,bmi2,cmov,cx16,cx8,f16c,fma,lahf_lm,movbe,pni,popcnt,rdseed,sha_ni,sse,sse2,"
    fields = {"backend": "llvm-cpu", "arch": "host"}
    features = f"x86_64-AuthenticAMD-23-49-0,{kernel}sse4_1,sse4_2,sse4a,ssse3"
    assert Target.restored(fields | {"features": features}) == Target.parse("cpu")


def test_an_older_machine_lacks_what_a_newer_one_was_told(machine: Callable[[str], None]) -> None:
    machine("zen4")
    needs = Target.parse("cpu").extensions
    machine("zen2")
    assert "avx512f" in missing_features(needs)
    assert missing_features(Target.parse("cpu:haswell").extensions) == ()
    assert missing_features(Target.parse("cpu:skylake-avx512").extensions) == tuple(sorted(V4 - V3))


def test_flags_of_the_user_count(machine: Callable[[str], None]) -> None:
    machine("zen2")
    target = Target.parse("cpu")
    assert "avx512f" in target.needs((*target.flags(), "--iree-llvmcpu-target-cpu=znver4"))
    more = "--iree-llvmcpu-target-cpu-features=+avx512f,-fma"
    assert target.needs((*target.flags(), more)) == ("avx512f",)


@pytest.mark.skipif(host_arch() != "x86_64", reason="names of x86-64 extensions")
def test_without_cpuinfo_nothing_is_assumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_CPUINFO", tmp_path / "none")
        forget()
        assert set(cpu.host_extensions()) == PROCESSORS["generic"]
        assert Target.parse("cpu").vector_bytes == 16
        assert "-sse" not in ",".join(Target.parse("cpu").flags()).replace("-sse3", "").replace("-sse4", "")
    forget()


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),  # two and a half
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": "nonsense"}, 8),
        ({"cpu.max": "100000 0\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_container_gets_no_more_threads_than_processor_time(
    files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(cpu, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cpu.usable_cpus() == count
