"""Saved models: one file with a program, plans and constants for each of several targets, and of sizes of open dims.

The file is a ZIP archive of stored members: ``manifest.json``, then ``blobs/<SHA-256>`` for each plan and constant,
which targets share where they are equal. Whatever is read is checked against its hash, and a program as `Program.check`
does. A plan holds native code, so a model is as trustworthy as who made it: the checks find damage, not malice.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from fusilli_ground.files import whole_file
from hipdnn_backend.offload.buckets import Extent, OpenDim, combinations
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.program.document import from_document, to_document
from hipdnn_backend.offload.program.program import Program, ProgramError

__all__ = [
    "FORMAT",
    "VERSION",
    "Package",
    "PackageError",
    "SavedPlan",
    "TargetProgram",
    "is_package",
    "save_package",
]

Array = np.ndarray[Any, Any]

FORMAT: Final = "hipdnn-offloaded-model"
VERSION: Final = 2
_STATIC_VERSION: Final = 1  # of models whose dims are all known
_MANIFEST: Final = "manifest.json"
_BLOBS: Final = "blobs/"
_MAGIC: Final = b"PK\x03\x04"
_MAX_MANIFEST: Final = 256 << 20  # bytes
_MAX_MEMBERS: Final = 1 << 20
# Plans and constants of one target may share bytes; together they have so many times the file's bytes, or these.
_MAX_SHARED: Final = 4
_ALWAYS_SHARED: Final = 64 << 20
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # equal models give equal files


class PackageError(OffloadError):
    """A saved model is damaged, of another version, or not made for what it shall run on."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan as its engine serialized it.

    Attributes:
        engine: name.
        payload: means something to that engine only.
        origin: the file that it was read from and the member in it, "" if it was not.
    """

    engine: str
    payload: bytes
    origin: str = field(default="", compare=False)


@dataclass(frozen=True)
class TargetProgram:
    """A model compiled for one target.

    Attributes:
        target: e.g. ``gfx942``, ``cpu``.
        program: what to do.
        plans: by the numbers that the program's graphs have.
        constants: by name.
        about: JSON document for reports: how it was made.
        sizes: of the model's open dims, if it is compiled for several.
        opened: these dims, and how they are padded; the same for all variants of a model.
    """

    target: str
    program: Program
    plans: tuple[SavedPlan, ...]
    constants: Mapping[str, Array]
    about: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    opened: tuple[OpenDim, ...] = ()


def is_package(start: bytes) -> bool:
    """Whether a file that starts so may be a saved model; `Package.open` knows for certain."""
    return start[:4] == _MAGIC


def save_package(path: str | os.PathLike[str], name: str, variants: Sequence[TargetProgram]) -> None:
    """Write a model; a file that was there stays if that fails. A device or pipe is written to, not replaced.

    Args:
        path: of the file.
        name: of the model.
        variants: one for each target, or for each target and each combination of sizes.

    Raises:
        OSError: it cannot be written.
        PackageError: two variants are for one target and the same sizes.
    """
    targets = [(variant.target, *variant.sizes.items()) for variant in variants]
    if len(set(targets)) != len(targets):
        shown = [variant.target for variant in variants]
        raise PackageError(f"model '{name}' has two variants for one target among {shown}")
    with whole_file(path) as file:
        _write(file, name, variants)


def _write(file: BinaryIO, name: str, variants: Sequence[TargetProgram]) -> None:
    """Blobs are named by digest: equal ones are stored once. All have one date, so equal models are equal files."""
    blobs: dict[str, bytes | memoryview] = {}

    def blob(data: bytes | memoryview) -> str:
        digest = hashlib.sha256(data).hexdigest()
        blobs.setdefault(digest, data)
        return digest

    documents = [
        {
            "target": variant.target,
            "program": to_document(variant.program),
            "plans": [[plan.engine, blob(plan.payload)] for plan in variant.plans],
            "constants": [
                [key, array.dtype.name, list(array.shape), blob(_bytes(array))]
                for key, array in variant.constants.items()
            ],
            "about": variant.about,
            **({"sizes": dict(variant.sizes), "opened": _opened_document(variant.opened)} if variant.sizes else {}),
        }
        for variant in variants
    ]
    version = VERSION if any(variant.sizes for variant in variants) else _STATIC_VERSION
    manifest = {"format": FORMAT, "version": version, "name": name, "variants": documents}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_MANIFEST, _DATE), json.dumps(manifest, ensure_ascii=False))
        for digest, data in blobs.items():
            with archive.open(zipfile.ZipInfo(_BLOBS + digest, _DATE), "w", force_zip64=True) as member:
                member.write(data)


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Package:
    """A saved model that is open for reading: `variant` reads what belongs to one target.

    Attributes:
        path: of the file.
        name: of the model.
        targets: what it was compiled for, in the order in which it was.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.name: str = manifest["name"]
        self._variants: dict[str, list[Mapping[str, Any]]] = {}
        for each in manifest["variants"]:
            self._variants.setdefault(each["target"], []).append(each)
        self.targets = tuple(self._variants)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Package:
        """Read what a saved model says of itself.

        Raises:
            PackageError: it is none, damaged, or of another version.
            OSError: it cannot be read.
        """
        path = Path(path)
        with _archive(path) as archive:
            if len(archive.infolist()) > _MAX_MEMBERS:
                raise PackageError(f"{path}: an archive of {len(archive.infolist())} members is no saved model")
            data = _member(archive, _MANIFEST, path, _MAX_MANIFEST)
        try:
            manifest = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PackageError(f"{path}: damaged: {_MANIFEST} is no JSON: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise PackageError(f"{path}: this archive is no saved model")
        version = manifest.get("version")
        if version not in (_STATIC_VERSION, VERSION) or isinstance(version, bool):
            raise PackageError(f"{path}: version {version} of a saved model is unknown, this reads up to {VERSION}")
        variants = manifest.get("variants")
        if not isinstance(manifest.get("name"), str) or not isinstance(variants, list) or not variants:
            raise PackageError(f"{path}: damaged: it has no name or no variants")
        if not all(isinstance(each, dict) and isinstance(each.get("target"), str) for each in variants):
            raise PackageError(f"{path}: damaged: a variant has no target")
        return cls(path, manifest)

    def variant(self, target: str) -> TargetProgram:
        """What was compiled for a target.

        Raises:
            PackageError: the model was not compiled for it (the message has the targets inside), or is damaged.
            OSError: it cannot be read.
        """
        found = self.variants(target, most=1)
        if found[0].sizes:
            names = " ".join(each.name for each in found[0].opened)
            raise PackageError(
                f"{self.path}: model '{self.name}' is compiled for several sizes of {names}; load it with "
                "hipdnn_backend.offload.load_shapes"
            )
        return found[0]

    def variants(self, target: str, most: int | None = None) -> list[TargetProgram]:
        """What was compiled for a target: one variant, or one for each combination of sizes.

        Args:
            target: e.g. ``cpu``.
            most: how many are read at most.

        Raises:
            PackageError, OSError: as for `variant`.
        """
        if target not in self._variants:
            raise PackageError(f"{self.path}: model '{self.name}' is not compiled for {target}; {self.inside()}")
        documents = self._variants[target]
        try:
            with _archive(self.path) as archive:
                found = [self._read(archive, target, document) for document in documents[:most]]
            if most is None:
                _check_sizes(found)
            elif len(documents) > 1 and not found[0].sizes:
                raise ProgramError("it is there twice")
            return found
        except ProgramError as error:
            raise PackageError(f"{self.path}: damaged: {_MANIFEST}, target {target}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise PackageError(
                f"{self.path}: damaged: {_MANIFEST}, target {target}: {type(error).__name__}: {error}"
            ) from error

    @property
    def has_sizes(self) -> bool:
        """Whether it is compiled for several sizes of its open dims."""
        return any("sizes" in each for each in self._variants[self.targets[0]])

    def inside(self) -> str:
        """Which targets it has, in words."""
        return f"it has code for {', '.join(self.targets)}"

    def _read(self, archive: zipfile.ZipFile, target: str, document: Mapping[str, Any]) -> TargetProgram:
        """A variant, all of which has to fit its program before any of it is used."""
        program = from_document(document["program"])
        blobs = _Blobs(archive, self.path)
        if len(document["plans"]) != program.plans:
            raise ProgramError(f"the program needs {program.plans} plans, the file has {len(document['plans'])}")
        plans = [
            SavedPlan(_string(name), blobs.read(digest), f"{self.path}: plan {number} in {_BLOBS}{digest}")
            for number, (name, digest) in enumerate(document["plans"])
        ]
        wanted = {named.name: program.views[named.view] for named in program.constants}
        constants: dict[str, Array] = {}
        for name, dtype, dims, digest in document["constants"]:
            view = wanted.get(name)
            if view is None or (dtype, tuple(dims)) != (view.dtype, view.dims):
                raise ProgramError(f"constant {name!r} of {dims} {dtype} is not what the program has")
            if name in constants:
                raise ProgramError(f"constant {name!r} is there twice")
            data = blobs.read(digest)
            if len(data) != view.count * view.itemsize:
                raise ProgramError(f"constant {name!r} of {dims} {dtype} has {len(data)} bytes")
            constants[name] = np.frombuffer(data, dtype).reshape(view.dims)
        missing = wanted.keys() - constants.keys()
        if missing:
            raise ProgramError(f"constants are missing: {sorted(missing)[:8]}")
        made = TargetProgram(target, program, tuple(plans), constants, _about(document.get("about")))
        if "sizes" not in document:
            return made
        opened = tuple(_opened(each) for each in document["opened"])
        sizes = {_string(name): _count(size) for name, size in document["sizes"].items()}
        _check_opened(program, opened, sizes)
        return replace(made, sizes=sizes, opened=opened)


def _opened_document(opened: Sequence[OpenDim]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "sizes": list(each.sizes),
            "inputs": [[at.number, at.axis, at.per] for at in each.inputs],
            "outputs": [[at.number, at.axis, at.per] for at in each.outputs],
            "refusal": each.refusal,
        }
        for each in opened
    ]


def _opened(document: Mapping[str, Any]) -> OpenDim:
    sizes = tuple(_count(size) for size in document["sizes"])
    if not sizes or list(sizes) != sorted(set(sizes)):
        raise ValueError(f"sizes {list(sizes)} do not rise")
    inputs, outputs = (
        tuple(Extent(_index(number), _index(axis), _count(per)) for number, axis, per in document[side])
        for side in ("inputs", "outputs")
    )
    return OpenDim(_string(document["name"]), sizes, inputs, outputs, _string(document["refusal"]))


def _check_opened(program: Program, opened: Sequence[OpenDim], sizes: Mapping[str, int]) -> None:
    """Hold what is said of open dims against the program, whose arguments are padded and cut by it.

    Raises:
        ProgramError: it does not fit.
    """
    if [each.name for each in opened] != list(sizes):
        raise ProgramError(f"it has sizes of {list(sizes)}, but open dims {[each.name for each in opened]}")
    for each in opened:
        size = sizes[each.name]
        if size not in each.sizes:
            raise ProgramError(f"size {size} of dim {each.name!r} is none of {list(each.sizes)}")
        for places, arguments in ((each.inputs, program.inputs), (each.outputs, program.outputs)):
            for at in places:
                dims = program.views[arguments[at.number].view].dims if at.number < len(arguments) else ()
                if (
                    at.axis >= len(dims)
                    or dims[at.axis] % size
                    or (places is each.inputs and dims[at.axis] != at.per * size)
                ):
                    raise ProgramError(f"dim {at.axis} of argument {at.number} does not follow from dim {each.name!r}")


def _check_sizes(variants: Sequence[TargetProgram]) -> None:
    """All combinations of sizes are there, once each.

    Raises:
        ProgramError: they are not.
    """
    opened = variants[0].opened
    wanted = [tuple(bucket.items()) for bucket in combinations({each.name: each.sizes for each in opened})]
    there = [tuple(variant.sizes.items()) for variant in variants]
    if any(variant.opened != opened for variant in variants) or sorted(there) != sorted(wanted):
        raise ProgramError("its variants are not those of its open dims")


def _count(value: object) -> int:
    number = _index(value)
    if not number:
        raise ValueError("0 is no size")
    return number


def _index(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no number of that kind")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value


def _about(document: object) -> dict[str, Any]:
    """What is well formed of a report: it is for reading only, so the rest is left out instead of refused."""
    if not isinstance(document, dict):
        return {}
    return {key: value for key, value in document.items() if key not in _ABOUT or _ABOUT[key](value)}


def _is_table(value: object, item: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) and item(entry) for key, entry in value.items())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_answers(value: object) -> bool:
    return _is_table(value, lambda answer: _is_table(answer, lambda word: isinstance(word, str)))


def _is_graph(value: object) -> bool:
    return (
        isinstance(value, dict)
        and _is_words(value.get("nodes", []))
        and _is_words(value.get("operations", []))
        and isinstance(value.get("equal_to", ""), str)
        and _is_number(value.get("seconds", 0))
        and _is_answers(value.get("declined", {}))
    )


def _is_fate(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("node", "operator", "became", "words")
    )


def _is_pass(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and _is_number(value[1])


_ABOUT: Final[dict[str, Callable[[Any], bool]]] = {
    "graphs": lambda value: _is_table(value, _is_graph),
    "dispatches": lambda value: isinstance(value, list) and all(n is None or _is_number(n) for n in value),
    "passes": lambda value: isinstance(value, list) and all(map(_is_pass, value)),
    "seconds": lambda value: _is_table(value, _is_number),
    "refused": lambda value: _is_table(value, _is_answers),
    "nodes": lambda value: isinstance(value, list) and all(map(_is_fate, value)),
    "splits": lambda value: (
        isinstance(value, list) and all(isinstance(each, dict) and _is_words(each.get("nodes", [])) for each in value)
    ),
}


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with _regular_file(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
            raise PackageError(f"{path}: no saved model, or a damaged one: {error}") from error
        with archive:
            # Plans hold archives. In a file that was cut, zipfile takes the last of those for all there is.
            if not archive.filelist or archive.filelist[0].header_offset:
                raise PackageError(f"{path}: no saved model, or a damaged one: its end does not belong to its start")
            yield archive


@contextmanager
def _regular_file(path: Path) -> Iterator[BinaryIO]:
    """A file open for reading; a pipe or device, on which reading may never end, is refused."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise PackageError(f"{str(path)!r} is no name of a file: {error}") from error
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise PackageError(f"{path}: no saved model: it is no file")
        yield file


class _Blobs:
    """Reads what a manifest names by hash: each once, and no more than a file of this size can mean."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive = archive
        self._path = path
        self._known: dict[str, bytes] = {}
        self._unread = path.stat().st_size
        self._room = max(_ALWAYS_SHARED, _MAX_SHARED * self._unread)

    def read(self, digest: object) -> bytes:
        """The bytes with a hash, if they have it."""
        digest = _string(digest)
        data = self._known.get(digest)
        if data is None:
            data = self._known[digest] = self._read(digest)
        self._room -= len(data)
        if self._room < 0:
            raise PackageError(f"{self._path}: damaged: its plans and constants are much larger than the file")
        return data

    def _read(self, digest: str) -> bytes:
        name = _BLOBS + digest
        data = _member(self._archive, name, self._path, self._unread)
        self._unread -= len(data)
        if hashlib.sha256(data).hexdigest() != digest:
            raise PackageError(f"{self._path}: damaged: the bytes of {name[:32]}... are not those that were saved")
        return data


def _member(archive: zipfile.ZipFile, name: str, path: Path, limit: int) -> bytes:
    """A member's bytes. Only stored ones are read: they cannot be larger than the file."""
    try:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
            raise PackageError(f"{path}: {name} is compressed, which no saved model is")
        if info.file_size > limit:
            raise PackageError(f"{path}: {name} has {info.file_size} bytes, more than {limit}")
        return archive.read(info)
    except KeyError as error:
        raise PackageError(f"{path}: damaged or no saved model: there is no {name[:80]} in it") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, PackageError):
            raise
        raise PackageError(f"{path}: damaged: {name[:80]} cannot be read: {error}") from error
