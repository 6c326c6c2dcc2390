from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusilli_ground.errors import OptionError
from graph_api import CompileError, DataType, ExecutionError, Graph, NotSupportedError, PointwiseMode
from iree_bridge.artifact import artifact, vectors
from iree_bridge.artifact.artifact import Artifact, ArtifactError, compile_artifact
from iree_bridge.compile import versions
from iree_bridge.compile.options import CompileMode, Options
from iree_bridge.targets.cpu import host_arch
from iree_bridge.targets.target import Target

pytestmark = pytest.mark.iree_cpu
CPU, GPU = Target.parse("cpu"), Target.parse("gfx942")


def make_graph(size: int = 5000) -> Graph:
    graph = Graph("scale", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x = graph.tensor("x/1", dim=(2, size))
    y = graph.pointwise(PointwiseMode.MUL, x, x, name="square")
    graph.pointwise(PointwiseMode.SUB, y, x, name="less").set_output(True)
    return graph.validate()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    return Options(cache_dir=tmp_path_factory.mktemp("artifact") / "cache")


@pytest.fixture(scope="module")
def made(options: Options) -> Artifact:
    return compile_artifact(make_graph(), [CPU, GPU], options)


@pytest.fixture
def saved(made: Artifact, tmp_path: Path) -> Path:
    path = tmp_path / "a file.fusilli"
    made.save(path)
    return path


def test_round_trip(made: Artifact, saved: Path, tmp_path: Path) -> None:
    loaded = Artifact.load(saved)
    assert loaded.graph.to_json() == made.graph.to_json()
    assert loaded.targets == (CPU, GPU)
    assert {name: dataclasses.asdict(code) for name, code in loaded.codes.items()} == {
        name: dataclasses.asdict(code) for name, code in made.codes.items()
    }
    assert loaded.made_by["iree-base-compiler"] == versions.compiler_version()
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file.fusilli", "again"]


def test_the_file_describes_itself(saved: Path) -> None:
    with zipfile.ZipFile(saved) as file:
        manifest = json.loads(file.read("manifest.json"))
        assert "func.func @main" in file.read("targets/cpu/module.mlir").decode()
        assert all(info.compress_type == zipfile.ZIP_STORED for info in file.infolist())
    assert [(row["role"], row["dims"], row["strides"], row["data_type"]) for row in manifest["arguments"]] == [
        ("output", [2, 5000], [5000, 1], "HALF"),
        ("input", [2, 5000], [5000, 1], "HALF"),
    ]
    assert manifest["arguments"][1]["name"] == "x/1"
    assert manifest["targets"]["gfx942"]["flags"] == list(GPU.flags())
    assert "sse2" in manifest["targets"]["cpu"]["cpu_features"] or manifest["targets"]["cpu"]["machine"] != "x86_64"


def _repacked(path: Path, change: Callable[[dict[str, bytes]], None], **zip_options: int) -> None:
    with zipfile.ZipFile(path) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    change(members)
    with zipfile.ZipFile(path, "w", **zip_options) as file:  # type: ignore[arg-type]
        for name, data in members.items():
            file.writestr(name, data)


def _manifest(**changes: object) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["manifest.json"] = json.dumps(json.loads(members["manifest.json"]) | changes).encode()

    return change


def _changed(edit: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        edit(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def _resized(header: bytes) -> Callable[[dict[str, bytes]], None]:
    """A crafted array in the test vector, with the right checksum."""

    def change(members: dict[str, bytes]) -> None:
        name = next(name for name in members if name.endswith(".indices.npy"))
        data = members[name] = b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n"
        entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _changed(lambda manifest: manifest["members"].update({name: entry}))(members)

    return change


def _drop(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        del members[name]

    return change


def _replace(name: str, data: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({name: data})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("manifest.json"), "no manifest.json"),
        (_drop("graph.json"), "differ in 'graph.json'"),
        (_drop("targets/gfx942/code.vmfb"), "differ in 'targets/gfx942/code.vmfb'"),
        (_replace("extra", b""), "differ in 'extra'"),
        (_replace("../escape", b""), "no artifact uses"),
        (_replace("graph.json", b"{}"), "'graph.json' is damaged"),
        (_replace("manifest.json", b"[1]"), "not that of an artifact"),
        (_replace("manifest.json", b"{"), "damaged"),
        (_replace("manifest.json", b'{"format": "fusilli-artifact", "version": 1}'), "its manifest has no '"),
        (_manifest(version=2), "format version is 2, this release reads 1"),
        (_manifest(format="zip"), "not that of an artifact"),
        (_manifest(arguments=[]), "argument table"),
        (_manifest(targets={}), "no code"),
        (_manifest(targets={"cpu": {"target": {"backend": "rocm", "arch": "gfx942"}}}), "is for"),
        (_manifest(targets={"--flag": {"target": {"backend": "rocm", "arch": "--flag"}}}), "is no target"),
        (_manifest(vector={"rule": vectors.RULE, "seed": "x", "outputs": []}), "damaged"),
        (_manifest(members=5), "damaged"),
        (_manifest(made_by=[]), "damaged"),
        (_manifest(targets=[]), "damaged"),
        (_manifest(vector={"rule": vectors.RULE, "seed": float("inf"), "outputs": []}), "damaged"),
        (_replace("manifest.json", b"[" * 100_000), "damaged"),
        (_changed(lambda manifest: manifest["targets"]["cpu"].update(seconds=float("nan"))), "took nan seconds"),
        (_resized(b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}"), "damaged"),
        (_resized(b"(((((("), "damaged"),
    ],
)
def test_a_changed_file_is_refused(saved: Path, change: Callable[[dict[str, bytes]], None], message: str) -> None:
    _repacked(saved, change)
    with pytest.raises(ArtifactError, match=message) as caught:
        Artifact.load(saved)
    assert str(saved) in str(caught.value)


def test_a_compressed_file_is_refused(saved: Path) -> None:
    _repacked(saved, lambda members: None, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ArtifactError, match="compressed"):
        Artifact.load(saved)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as file:
        file.writestr("graph.json", b"{}")
    with pytest.raises(ArtifactError, match="same name"):
        Artifact.load(saved)


def test_any_damaged_byte_is_noticed_or_harmless(saved: Path, made: Artifact) -> None:
    data = saved.read_bytes()
    for position in range(0, len(data), 997):
        saved.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        try:
            loaded = Artifact.load(saved)
        except ArtifactError:
            continue
        assert {name: code.vmfb for name, code in loaded.codes.items()} == {
            name: code.vmfb for name, code in made.codes.items()
        }


@pytest.mark.parametrize("size", [0, 1, 100, -1, -30])
def test_a_cut_file_is_refused(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(ArtifactError):
        Artifact.load(saved)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        Artifact.load(tmp_path / "missing")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_is_none(path: str, made: Artifact) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        Artifact.load(path)
    with pytest.raises((OSError, OptionError)):
        made.save(path)


def test_a_pipe_is_written_and_not_read(made: Artifact, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="is no file"):
        Artifact.load(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
    made.save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert os.read(reader, 1 << 20) == made.to_bytes()
    os.close(reader)


def test_saving_goes_through_a_link_and_takes_long_names(made: Artifact, tmp_path: Path) -> None:
    name = "x" * 255
    (tmp_path / "link").symlink_to(name)
    for _ in range(2):
        made.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / name).read_bytes() == made.to_bytes()


def test_code_for_a_target(made: Artifact, options: Options) -> None:
    for name in ("cpu", "gfx942"):
        code = made.code_for(Target.parse(name), options)
        assert code.vmfb == made.codes[name].vmfb
        assert str(code.target) == name
    assert made.code_for(Target.parse("mi300x"), options).target == GPU
    with pytest.raises(NotSupportedError, match=r"has code for cpu, gfx942, none for gfx950; run: fusilli compile"):
        made.code_for(Target.parse("gfx950"), options)


def _with_cpu(made: Artifact, **changes: object) -> Artifact:
    code = dataclasses.replace(made.codes["cpu"], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(made, codes={"cpu": code})


def test_a_host_without_the_processor_extensions_refuses(made: Artifact, options: Options) -> None:
    with pytest.raises(ExecutionError, match=r"extensions that this machine lacks \(avx2048\)"):
        _with_cpu(made, cpu_features=("cmov", "avx2048")).code_for(CPU, options)
    with pytest.raises(ExecutionError, match=r"lacks \(mips64\)"):
        _with_cpu(made, cpu_features=(), machine="mips64").code_for(CPU, options)


def test_an_entry_that_this_machine_can_run_is_taken(made: Artifact, options: Options) -> None:
    bad = dataclasses.replace(made.codes["cpu"], cpu_features=("avx2048",))
    good = dataclasses.replace(made.codes["cpu"], target=Target("llvm-cpu", "generic"), cpu_features=())
    both = dataclasses.replace(made, codes={"cpu": bad, "cpu:generic": good})
    assert str(both.code_for(CPU, options).target) == "cpu:generic"


def test_another_runtime_version_compiles_again(made: Artifact, options: Options, tmp_path: Path) -> None:
    old = _with_cpu(made, iree="3.0.0", vmfb=b"old")
    code = old.code_for(CPU, dataclasses.replace(options, cache_dir=tmp_path / "cache"))
    assert code.vmfb == made.codes["cpu"].vmfb
    assert not code.from_cache
    assert code.flags == (*made.codes["cpu"].global_flags, *made.codes["cpu"].flags)


def test_another_runtime_version_without_a_compiler(
    made: Artifact, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = versions.iree_version()
    other = here.rpartition(".")[0] + ".7"
    monkeypatch.setattr(versions, "compiler_version", lambda: None)
    monkeypatch.setattr(versions, "runtime_version", lambda: other)
    said = rf"made by IREE {re.escape(here)}.*runtime is {re.escape(other)}.*pip install"
    with pytest.raises(ArtifactError, match=said):
        made.code_for(CPU, options)


def test_the_test_vector_judges(made: Artifact, saved: Path) -> None:
    loaded = Artifact.load(saved)
    inputs = loaded.test_inputs()
    (x,) = inputs.values()
    assert x.shape == (2, 5000)
    assert -2 <= x.min() < -1.9
    assert 1.9 < x.max() < 2.01
    (y,) = loaded.graph.arguments().outputs
    exact = x.astype(np.float64) ** 2 - x.astype(np.float64)
    (right,) = loaded.check({y.uid: exact.astype(np.float16)})
    assert right.ok
    assert loaded.vector is not None
    assert 3000 < len(loaded.vector.samples[y.uid].indices) <= vectors.MAX_SAMPLES
    wrong = exact.astype(np.float16)
    wrong[1, 4999] += 1  # the last element is always among the samples
    (found,) = loaded.check({y.uid: wrong})
    assert not found.ok
    assert found.index == (1, 4999)
    assert found.got == pytest.approx(exact[1, 4999] + 1, abs=0.01)


def test_inputs_are_made_by_a_rule_that_stays(made: Artifact) -> None:
    # splitmix64 as published, computed here with Python integers.
    def mixed(stream: int, index: int) -> int:
        mask = 2**64 - 1
        z = ((stream * 0xD1342543DE82EF95 + 1) + (index + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    (x,) = vectors.make_inputs(made.graph, 7).values()
    expected = [(mixed(7 * 0x1000003, index) >> 40) / 2**22 - 2 for index in range(4)]
    assert x.reshape(-1)[:4].tolist() == np.asarray(expected, np.float32).astype(np.float16).tolist()


@pytest.mark.parametrize(
    "dtype",
    [DataType.INT8, DataType.INT4, DataType.UINT8, DataType.INT32, DataType.BOOLEAN, DataType.BFLOAT16],
)
def test_inputs_of_each_kind(dtype: DataType) -> None:
    graph = Graph("kinds", io_data_type=dtype)
    x = graph.tensor("x", dim=(8, 4, 9), stride=(0, 1, 4))
    graph.pointwise(PointwiseMode.IDENTITY, x).set_output(True)
    graph.validate()
    array = vectors.make_inputs(graph, 0)[x]
    assert array.dtype == dtype.numpy
    assert array.strides == tuple(stride * dtype.numpy.itemsize for stride in (0, 1, 4))
    assert len(np.unique(array)) >= (2 if dtype is DataType.BOOLEAN else 8)


def test_a_reference_that_is_too_expensive_is_left_out_with_the_reason(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vectors, "_MAX_ELEMENTS", 100)
    made = compile_artifact(make_graph(), [CPU], options)
    made.save(tmp_path / "a")
    loaded = Artifact.load(tmp_path / "a")
    assert loaded.vector is None
    assert "elements" in loaded.no_vector
    with pytest.raises(ArtifactError, match="no test vector: its tensors have"):
        loaded.check({})


def test_no_target(options: Options) -> None:
    with pytest.raises(NotSupportedError, match="no target was given"):
        compile_artifact(make_graph(), [], options)


def test_loading_needs_no_compiler(saved: Path, options: Options) -> None:
    never = dataclasses.replace(options, compile=CompileMode.NEVER, python=Path("/nonexistent"))
    assert Artifact.load(saved).code_for(CPU, never).vmfb
    with pytest.raises(CompileError):
        compile_artifact(make_graph(7), [CPU], never)


def test_the_largest_sizes_are_limits(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_MAX_MEMBERS", 3)
    with pytest.raises(ArtifactError, match="the limit is 3"):
        Artifact.load(saved)
    monkeypatch.setattr(artifact, "_MAX_BYTES", 1000)
    with pytest.raises(ArtifactError, match="more than 1000 bytes"):
        Artifact.load(saved)


def test_arrays_are_plain() -> None:
    assert vectors.decode(vectors.encode(np.arange(3, dtype=np.int64)), np.int64).tolist() == [0, 1, 2]
    for bad in (np.zeros((2, 2)), np.zeros(3, np.float32)):
        with pytest.raises(ValueError, match="expected a one-dimensional"):
            vectors.decode(vectors.encode(bad), np.float64)
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        vectors.decode(buffer.getvalue(), np.float64)


def test_what_an_earlier_version_saved(made: Artifact, options: Options, tmp_path: Path) -> None:
    """It listed all that LLVM attributes to the processor, and the model in the target."""
    model = f"{host_arch()}-GenuineIntel-6-143-8,rdseed,avx,sse2"
    had = (*made.codes["cpu"].cpu_features, "64bit", "rdseed", "adx", "clzero", "prefetchi", "avx10.1")
    flags = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", *CPU.flags()[3:])
    old = _with_cpu(made, cpu_features=had, target=dataclasses.replace(CPU, features=model), flags=flags)
    old.save(tmp_path / "old.fusilli")
    loaded = Artifact.load(tmp_path / "old.fusilli")
    assert loaded.code_for(CPU, options).vmfb == made.codes["cpu"].vmfb
    again = _with_cpu(loaded, iree="3.0.0", vmfb=b"old").code_for(CPU, options)
    assert "--iree-llvmcpu-target-cpu=host" not in again.flags
    assert set(loaded.codes["cpu"].target.extensions) <= set(CPU.extensions)
