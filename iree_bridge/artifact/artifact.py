"""Artifact: a file with code for one or more targets, and all that is needed to judge, check and rebuild it.

A ZIP file, members stored as they are::

    manifest.json            format, versions, argument table, targets, sizes and SHA-256 of all other members
    graph.json               the graph
    targets/<name>/code.vmfb the code
    targets/<name>/module.mlir  the IR it was made from
    vector/<uid>.<what>.npy  test vector: positions, expected values and error bounds of an output

An artifact is code: load those only that you would run. What is checked here is damage, sizes and consistency.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fusilli_ground.errors import OptionError
from fusilli_ground.files import path_of, write_whole
from graph_api import ExecutionError, FusilliError, Graph, NotSupportedError, TensorAttr
from graph_api.numerics import Comparison
from iree_bridge.artifact import vectors
from iree_bridge.artifact.vectors import Sample, TestVector
from iree_bridge.compile import compiler, versions
from iree_bridge.compile.compiler import CompiledCode
from iree_bridge.compile.options import Options
from iree_bridge.targets.cpu import host_arch, missing_features
from iree_bridge.targets.target import Target

if TYPE_CHECKING:
    from iree_bridge.devices.device import Device
    from iree_bridge.runtime import Executable

__all__ = ["Artifact", "ArtifactError", "TargetCode", "compile_artifact"]

FORMAT: Final = "fusilli-artifact"
VERSION: Final = 1

_MANIFEST: Final = "manifest.json"
_GRAPH: Final = "graph.json"
_MAX_MEMBERS: Final = 1024
_MAX_MANIFEST: Final = 16 << 20
_MAX_BYTES: Final = 4 << 30
_MEMBER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,200}")
_PROCESSOR: Final = re.compile("--iree-llvmcpu-target-cpu(-features)?=")  # of the target, in every version's spelling
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # of every member, so that equal content makes equal files


class ArtifactError(FusilliError):
    """The file is no artifact, is damaged, or was made by versions that this one cannot work with."""


@dataclass(frozen=True)
class TargetCode:
    """Code for one target.

    Attributes:
        target: what it is for.
        vmfb: the code.
        ir: the IR that it was made from.
        flags, global_flags: compiler flags that it was made with.
        iree: version of the compiler.
        machine: for a CPU target, the architecture (``x86_64``); empty otherwise.
        cpu_features: for a CPU target, the extensions that the code may use (LLVM's names): what the compiler was told.
            Earlier versions listed all that LLVM attributes to the processor.
        key, dispatches, seconds: as in ``CompiledCode``.
    """

    target: Target
    vmfb: bytes = field(repr=False)
    ir: str = field(repr=False)
    flags: tuple[str, ...]
    global_flags: tuple[str, ...]
    iree: str
    machine: str
    cpu_features: tuple[str, ...]
    key: str
    dispatches: int | None
    seconds: float

    def missing(self) -> tuple[str, ...]:
        """What this machine lacks to run the code: processor extensions, or the architecture."""
        return (self.machine,) if self.machine not in ("", host_arch()) else missing_features(self.cpu_features)


@dataclass(frozen=True)
class Artifact:
    """A compiled graph; see the module's text for the file.

    Attributes:
        graph: the validated graph.
        codes: code by target name.
        vector: the test vector; None if there is none.
        no_vector: why there is none.
        made_by: versions of what made it, by name.
    """

    graph: Graph
    codes: Mapping[str, TargetCode]
    vector: TestVector | None
    no_vector: str
    made_by: Mapping[str, str]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets that it has code for."""
        return tuple(code.target for code in self.codes.values())

    def test_inputs(self) -> dict[TensorAttr, NDArray[Any]]:
        """The inputs of the test vector.

        Raises:
            ArtifactError: there is none.
        """
        return vectors.make_inputs(self.graph, self._vector().seed)

    def check(self, results: Mapping[int, NDArray[Any]]) -> list[Comparison]:
        """Compare results (by output uid) for :meth:`test_inputs` with the expected values.

        Raises:
            ArtifactError: there is no test vector.
            FusilliError: a result is missing or misshapen.
        """
        return self._vector().check(self.graph, results)

    def load_on(self, device: str | Device, options: Options | None = None) -> Executable:
        """The graph on a device, ready to run.

        Args:
            device: e.g. ``cpu``, ``hip:1``.
            options: for code that has to be compiled again, see `code_for`.

        Raises:
            ExecutionError: the device is not there, or does not load the code.
            NotSupportedError, ArtifactError, CompileError: as `code_for`.
        """
        from iree_bridge.devices.device import Device
        from iree_bridge.runtime import Executable  # looking into a file needs no runtime

        place = Device.parse(device) if isinstance(device, str) else device
        code = self.code_for(place.target, options)
        return Executable(self.graph.arguments(), code.vmfb, place, flops=self.graph.flops(), alignment=code.alignment)

    def on(self, device: str | Device, options: Options | None = None) -> Executable:
        """`load_on`, short for calls in one line: ``Artifact.load("conv.fusilli").on("hip")(x, w)``."""
        return self.load_on(device, options)

    def code_for(self, target: Target, options: Options | None = None) -> CompiledCode:
        """Code that runs on ``target`` with the installed runtime.

        The entry of that name; else one for the same chip, or for a processor whose extensions this machine has. If the
        runtime is of another version than the compiler that made it, the IR is compiled again where a compiler is
        installed.

        Raises:
            NotSupportedError: there is no entry that fits.
            ExecutionError: this machine lacks extensions that the code needs.
            ArtifactError: the versions differ and no compiler is installed.
            CompileError: compiling again failed.
        """
        entry = self._entry(target)
        runtime = versions.runtime_version()
        if runtime in (None, entry.iree):
            return CompiledCode(
                entry.vmfb,
                entry.target,
                (*entry.global_flags, *entry.flags),
                entry.key,
                True,
                entry.dispatches,
                entry.seconds,
            )
        if versions.compiler_version() is None:
            raise ArtifactError(
                f"artifact of graph '{self.graph.name}': its code for {entry.target} was made by IREE {entry.iree}, "
                f"the installed runtime is {runtime}. Run: pip install 'iree-base-runtime=={entry.iree}'; or, to have "
                f"it compiled again when it is used: pip install 'iree-base-compiler=={runtime}'"
            )
        usual = {*entry.target.flags(), *entry.target.global_flags()}
        own, process = (
            tuple(flag for flag in flags if flag not in usual and not _PROCESSOR.match(flag))
            for flags in (entry.flags, entry.global_flags)
        )
        return compiler.compile_mlir(
            entry.ir, entry.target, options, flags=own, global_flags=process, name=self.graph.name
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, as a whole or not at all; through a link, and into a device or pipe.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """What :meth:`save` writes; equal artifacts give equal bytes."""
        members = self._members()
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, data in {_MANIFEST: _json(self._manifest(members)), **members}.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
        return file.getvalue()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Artifact:
        """Read a file and check all of it.

        Raises:
            ArtifactError: it is missing, no artifact, damaged, or of a later format.
        """
        try:
            path = path_of(path)
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError(f"artifact {path} is no file")  # reading a pipe may never end
            if status.st_size > _MAX_BYTES:
                raise ArtifactError(f"artifact {path} has more than {_MAX_BYTES} bytes")
            data = Path(path).read_bytes()
        except (OSError, OptionError) as error:
            raise ArtifactError(f"artifact {path} cannot be read: {error}") from error
        return cls.from_bytes(data, f"artifact {path}")

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "artifact") -> Artifact:
        """The artifact in bytes of :meth:`to_bytes`, all of it checked; ``what`` begins the messages of errors.

        Raises:
            ArtifactError: they are no artifact, damaged, or of a later format.
        """
        try:
            return _read(data)
        except ArtifactError as error:
            raise ArtifactError(f"{what}: {error}") from error
        except zipfile.BadZipFile as error:
            raise ArtifactError(f"{what} is damaged, or no artifact: cut short or changed ({error})") from error
        except KeyError as error:
            raise ArtifactError(f"{what} is damaged: its manifest has no {error}") from error
        except Exception as error:  # a crafted file makes zipfile, json and numpy raise all kinds
            raise ArtifactError(f"{what} is damaged, or no artifact: {error!r}") from error

    def _vector(self) -> TestVector:
        if self.vector is None:
            raise ArtifactError(f"artifact of graph '{self.graph.name}' has no test vector: {self.no_vector}")
        return self.vector

    def _entry(self, target: Target) -> TargetCode:
        candidates = [code for code in self.codes.values() if _serves(code.target, target)]
        candidates.sort(key=lambda code: str(code.target) != str(target))
        if not candidates:
            raise NotSupportedError(
                "",
                "artifact",
                f"artifact of graph '{self.graph.name}' has code for {', '.join(self.codes)}, none for {target}; "
                f"run: fusilli compile GRAPH.json --target {target} -o FILE",
            )
        lacking = [code.missing() for code in candidates]
        for code, missing in zip(candidates, lacking, strict=True):
            if not missing:
                return code
        raise ExecutionError(
            f"artifact of graph '{self.graph.name}': its code for {candidates[0].target} needs processor extensions "
            f"that this machine lacks ({', '.join(lacking[0])}); compile it here, or for an older processor: "
            "fusilli compile GRAPH.json --target cpu:x86-64-v3 -o FILE"
        )

    def _members(self) -> dict[str, bytes]:
        members = {_GRAPH: self.graph.to_json().encode()}
        for name, code in self.codes.items():
            members[f"{_folder(name)}/code.vmfb"] = code.vmfb
            members[f"{_folder(name)}/module.mlir"] = code.ir.encode()
        for uid, sample in self.vector.samples.items() if self.vector is not None else ():
            for what in ("indices", "expected", "bound"):
                members[f"vector/{uid}.{what}.npy"] = vectors.encode(getattr(sample, what))
        return members

    def _manifest(self, members: Mapping[str, bytes]) -> dict[str, Any]:
        """What a reader has to know before it opens a member, with the size and digest of each."""
        outputs, inputs = self.graph.arguments()
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.graph.name,
            "made_by": dict(self.made_by),
            "arguments": [
                {
                    "role": role,
                    "uid": tensor.uid,
                    "name": tensor.name,
                    "dims": list(tensor.dims),
                    "strides": list(tensor.strides),
                    "data_type": tensor.data_type.name,
                }
                for role, tensors in (("output", outputs), ("input", inputs))
                for tensor in tensors
            ],
            "targets": {name: _target_entry(code) for name, code in self.codes.items()},
            "vector": {"rule": vectors.RULE, "seed": self.vector.seed, "outputs": list(self.vector.samples)}
            if self.vector is not None
            else {"skipped": self.no_vector},
            "members": {
                name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()
            },
        }


def compile_artifact(
    graph: Graph, targets: Sequence[Target], options: Options | None = None, *, seed: int = 0
) -> Artifact:
    """Compile a graph for each of ``targets``; no device is needed.

    Raises:
        GraphError, NotSupportedError, CompileError: as ``iree_bridge.compile.compiler.compile_code``.
    """
    options = Options.or_env(options)
    graph.validate()
    if not targets:
        raise NotSupportedError("", "target", "no target was given; name at least one, e.g. gfx942")
    codes: dict[str, TargetCode] = {}
    for target in targets:
        code = compiler.compile_code(graph, target, options)
        recipe = compiler.recipe_for(graph, target, options, form=code.form)
        codes[str(target)] = TargetCode(
            target=target,
            vmfb=code.vmfb,
            ir=compiler.emit(graph, target, options, form=code.form).ir,
            flags=recipe.flags,
            global_flags=recipe.global_flags,
            iree=versions.iree_version(),
            machine="" if target.is_gpu else host_arch(),
            cpu_features=target.needs(recipe.flags),
            key=code.key,
            dispatches=code.dispatches,
            seconds=code.seconds,
        )
    vector = vectors.make_vector(graph, seed)
    has_vector = not isinstance(vector, str)
    made_by = {
        "iree-base-compiler": versions.compiler_version() or "",
        "iree-base-runtime": versions.runtime_version() or "",
        "emitter": versions.emitter_version(),
    }
    return Artifact(graph, codes, vector if has_vector else None, "" if has_vector else vector, made_by)


def _serves(have: Target, want: Target) -> bool:
    """Whether code for one target may run on the other, processor extensions aside."""
    return have.backend == want.backend and (have.backend == "llvm-cpu" or have.chip == want.chip)


def _target_entry(code: TargetCode) -> dict[str, Any]:
    plain = {key: value for key, value in asdict(code).items() if key not in ("vmfb", "ir")}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def _folder(target: str) -> str:
    return f"targets/{target.replace(':', '-')}"


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


def _read(data: bytes) -> Artifact:
    """Members are checked by size and digest before anything that they say is used."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        infos = _checked_infos(file, len(data))
        if _MANIFEST not in infos:
            raise ArtifactError("it has no manifest.json, so it is no artifact")
        if infos[_MANIFEST].file_size > _MAX_MANIFEST:
            raise ArtifactError("its manifest is too large")
        manifest = json.loads(file.read(_MANIFEST))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ArtifactError("its manifest is not that of an artifact")
        if manifest.get("version") != VERSION:
            raise ArtifactError(f"its format version is {manifest.get('version')!r}, this release reads {VERSION}")
        members = _checked_members(file, infos, manifest["members"])
    graph = Graph.from_json(members[_GRAPH])
    _check_arguments(graph, manifest["arguments"])
    codes = {name: _target_code(name, entry, members) for name, entry in manifest["targets"].items()}
    if not codes:
        raise ArtifactError("it has no code")
    vector = _vector(graph, manifest["vector"], members)
    has_vector = not isinstance(vector, str)
    made_by = {str(name): str(version) for name, version in manifest["made_by"].items()}
    return Artifact(graph, codes, vector if has_vector else None, "" if has_vector else vector, made_by)


def _checked_infos(file: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    infos = file.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise ArtifactError(f"it has {len(infos)} members, the limit is {_MAX_MEMBERS}")
    total = 0
    for info in infos:
        total += info.file_size
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
            raise ArtifactError(
                f"member {info.filename!r} is compressed or encrypted; artifacts are stored as they are"
            )
        if not _MEMBER_NAME.fullmatch(info.filename) or ".." in info.filename:
            raise ArtifactError(f"member {info.filename!r} has a name that no artifact uses")
    if total > size:
        raise ArtifactError(f"its members claim {total} bytes, the file has {size}")
    by_name = {info.filename: info for info in infos}
    if len(by_name) != len(infos):
        raise ArtifactError("two members have the same name")
    return by_name


def _checked_members(
    file: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo], listed: Mapping[str, Any]
) -> dict[str, bytes]:
    if {*listed, _MANIFEST} != set(infos):
        differing = sorted({*listed, _MANIFEST} ^ set(infos))
        raise ArtifactError(f"manifest and content differ in {', '.join(map(repr, differing[:5]))}")
    members: dict[str, bytes] = {}
    for name, entry in listed.items():
        data = file.read(name)
        if len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise ArtifactError(f"member {name!r} is damaged: size or SHA-256 differ from the manifest's")
        members[name] = data
    return members


def _check_arguments(graph: Graph, table: Sequence[Mapping[str, Any]]) -> None:
    """The table is for readers that have no graph API; it must say what the graph says."""
    outputs, inputs = graph.arguments()
    expected = [("output", tensor) for tensor in outputs] + [("input", tensor) for tensor in inputs]
    rows = [
        (row["role"], row["uid"], row["name"], tuple(row["dims"]), tuple(row["strides"]), row["data_type"])
        for row in table
    ]
    if rows != [(role, t.uid, t.name, t.dims, t.strides, t.data_type.name) for role, t in expected]:
        raise ArtifactError("its argument table is not that of its graph")


def _target_code(name: str, entry: Mapping[str, Any], members: Mapping[str, bytes]) -> TargetCode:
    """The code of one target. Each field is made what its type says: a manifest may come from anybody."""
    target = Target.restored(entry["target"])
    if str(target) != name:
        raise ArtifactError(f"the entry of target {name!r} is for {target!r}")
    if not math.isfinite(entry["seconds"]):
        raise ArtifactError(f"the entry of target {name!r} took {entry['seconds']} seconds")
    dispatches = entry["dispatches"]
    return TargetCode(
        target=target,
        vmfb=members[f"{_folder(name)}/code.vmfb"],
        ir=members[f"{_folder(name)}/module.mlir"].decode(),
        flags=tuple(map(str, entry["flags"])),
        global_flags=tuple(map(str, entry["global_flags"])),
        iree=str(entry["iree"]),
        machine=str(entry["machine"]),
        cpu_features=tuple(map(str, entry["cpu_features"])),
        key=str(entry["key"]),
        dispatches=None if dispatches is None else int(dispatches),
        seconds=float(entry["seconds"]),
    )


def _vector(graph: Graph, entry: Mapping[str, Any], members: Mapping[str, bytes]) -> TestVector | str:
    if "skipped" in entry:
        return str(entry["skipped"])
    if entry["rule"] != vectors.RULE:
        return f"its inputs are made by rule {entry['rule']!r}, this release knows {vectors.RULE!r}"
    samples: dict[int, Sample] = {}
    for tensor in graph.arguments().outputs:
        names = [f"vector/{tensor.uid}.{what}.npy" for what in ("indices", "expected", "bound")]
        indices = vectors.decode(members[names[0]], np.int64)
        expected, bound = (vectors.decode(members[name], np.float64) for name in names[1:])
        if not len(indices) == len(expected) == len(bound) or len(indices) > vectors.MAX_SAMPLES:
            raise ArtifactError(f"the test vector of output '{tensor.name}' has parts of different lengths")
        if len(indices) and not 0 <= indices.min() <= indices.max() < tensor.volume:
            raise ArtifactError(f"the test vector of output '{tensor.name}' has positions outside the tensor")
        samples[tensor.uid] = Sample(indices, expected, bound)
    return TestVector(int(entry["seed"]), samples)
