"""Models that carry compiled code: ONNX files whose ``EPContext`` nodes hold groups, ready to be loaded.

The code of a group is a package of `hipdnn_backend.offload`, embedded in the node or in a file beside the model. A
package holds native code, so such a model is as trustworthy as who made it; the checks find damage and what was made
for something else.

Source: https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from fusilli_ground.files import whole_file
from fusilli_plugin import __version__
from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import NAME, Api, AttributeType, OrtError, c_text
from fusilli_plugin.ort_ep.errors import ProviderError
from fusilli_plugin.ort_ep.offloading import Compiled
from hipdnn_backend.engine import Engine
from hipdnn_backend.offload.buckets import Extent, OpenDim
from hipdnn_backend.offload.program.package import Package, SavedPlan, TargetProgram, save_package

__all__ = ["DOMAIN", "OP_TYPE", "Restored", "create_node", "pack", "place", "restore", "save_model", "variant_of"]

OP_TYPE: Final = "EPContext"
DOMAIN: Final = "com.microsoft"
_SUFFIX: Final = ".fusilli"
_MAX_EMBEDDED: Final = 1 << 30  # bytes


def pack(name: str, variants: Sequence[TargetProgram]) -> bytes:
    """A package as bytes.

    Raises:
        OSError: there is no room for a temporary file.
        PackageError: two variants are for one target.
    """
    with tempfile.TemporaryDirectory(prefix="fusilli-context-") as folder:
        path = Path(folder, "package")
        save_package(path, name, variants)
        return path.read_bytes()


def variant_of(
    compiled: Compiled, target: str, sizes: Mapping[str, int] | None = None, opened: Sequence[OpenDim] = ()
) -> TargetProgram:
    """A compiled group as a variant of a package.

    Args:
        compiled: the group.
        target: what for.
        sizes: of its open dims, if it is one of several.
        opened: these dims.

    Raises:
        EngineError: an engine cannot serialize its plans.
    """
    engines = {graph.plan: graph.engine for graph in compiled.program.graphs}
    plans = tuple(SavedPlan(engines[number], plan.serialize()) for number, plan in enumerate(compiled.plans))
    constants, about = compiled.constants, dict[str, Any]()
    return TargetProgram(target, compiled.program, plans, constants, about, sizes or {}, tuple(opened))


@dataclass(frozen=True)
class _Where:
    """Where a group's code goes.

    Attributes:
        embed: into the node.
        folder: of the model that will be written.
        stem: of its file name.
    """

    embed: bool
    folder: Path
    stem: str

    def attributes(self, name: str, data: bytes) -> dict[str, int | bytes]:
        """Attributes of an EPContext node whose code is ``data``, which is written if it is not embedded."""
        content = data
        if not self.embed:
            file = f"{self.stem}_{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}{_SUFFIX}"
            _write(self.folder / file, data)
            content = file.encode()
        return {
            "main_context": 1,
            "embed_mode": int(self.embed),
            "ep_cache_context": content,
            "source": NAME.encode(),
            "ep_sdk_version": __version__.encode(),
            "partition_name": name.encode(),
        }


def place(path: str, model_path: str, *, embed: bool) -> _Where:
    """Where code goes, for a model that will be written to ``path`` or beside the one it is made of.

    Raises:
        ProviderError: nothing says where.
    """
    final = Path(path) if path else Path(model_path)
    if not embed and not final.name:
        raise ProviderError("the model has no path, so its code has no place: set ep.context_file_path, or embed it")
    return _Where(embed, final.parent, final.stem)


def _write(path: Path, data: bytes) -> None:
    try:
        with whole_file(path) as file:
            file.write(data)
    except OSError as error:
        raise ProviderError(f"{path} cannot be written: {error.strerror}") from error


def create_node(
    api: Api, name: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, int | bytes]
) -> Any:
    """An OrtNode that stands for a compiled group; ONNX Runtime takes it over.

    Raises:
        OrtError: ONNX Runtime cannot.
    """
    made: list[Any] = []
    try:
        for key, value in attributes.items():
            if isinstance(value, int):
                data, kind = ffi.new("int64_t[1]", [value]), AttributeType.INT
                size = 1
            else:
                data, kind = ffi.new("char[]", value), AttributeType.STRING
                size = len(value)
            made.append(api.get("CreateOpAttr", "void *", c_text(key), data, size, int(kind)))
        names = [c_text(text) for text in (*inputs, *outputs)]
        ins: Any = ffi.new("char *[]", names[: len(inputs)] or [ffi.NULL])
        outs: Any = ffi.new("char *[]", names[len(inputs) :] or [ffi.NULL])
        texts = [c_text(text) for text in (OP_TYPE, DOMAIN, name)]
        array: Any = ffi.new("void *[]", made)
        return api.get("CreateNode", "void *", *texts, ins, len(inputs), outs, len(outputs), array, len(made))
    except OrtError:
        for attribute in made:  # otherwise the node has them: releasing them as well frees them twice
            api.plain("ReleaseOpAttr", attribute)
        raise


@dataclass(frozen=True)
class Restored:
    """What an EPContext node holds.

    Attributes:
        codes: the group, for each combination of sizes.
        opened: its open dims; none if there is one shape.
    """

    codes: tuple[Compiled, ...]
    opened: tuple[OpenDim, ...] = ()

    def ordered(self, inputs: Sequence[int], outputs: Sequence[int]) -> Restored:
        """The same with its arguments in another order, given by their numbers now.

        Raises:
            ValueError: the numbers are not those of all arguments.
        """
        codes = tuple(code.ordered(inputs, outputs) for code in self.codes)
        moved = tuple(
            replace(each, inputs=_moved(each.inputs, inputs), outputs=_moved(each.outputs, outputs))
            for each in self.opened
        )
        return Restored(codes, moved)


def _moved(places: Sequence[Extent], order: Sequence[int]) -> tuple[Extent, ...]:
    return tuple(sorted((replace(at, number=list(order).index(at.number)) for at in places), key=_place))


def _place(at: Extent) -> tuple[int, int]:
    return at.number, at.axis


def restore(attributes: Mapping[str, Any], model_path: str, target: str, engines: Sequence[Engine]) -> Restored:
    """The group that an EPContext node holds.

    Args:
        attributes: of the node.
        model_path: of the model's file, "" if it has none.
        target: what the session's device needs.
        engines: of the session.

    Raises:
        ProviderError: the code is damaged, missing, or for another target, engine or version.
    """
    content = attributes.get("ep_cache_context", b"")
    name = attributes.get("partition_name", b"").decode(errors="replace")
    where = f"EPContext node '{name}'"
    if attributes.get("embed_mode", 1):
        with tempfile.TemporaryDirectory(prefix="fusilli-context-") as folder:
            path = Path(folder, "embedded code")
            path.write_bytes(content)
            return _restored(where, path, target, engines)
    return _restored(where, _beside(where, model_path, os.fsdecode(content)), target, engines)


def _beside(where: str, model_path: str, name: str) -> Path:
    """The file beside a model that one of its nodes names; nothing outside the model's folder."""
    if not model_path:
        raise ProviderError(
            f"{where}: its code is in a file beside the model, and the model was not loaded from a file"
        )
    folder = Path(model_path).resolve().parent
    path = folder if "\0" in name else (folder / name).resolve()
    if not path.is_relative_to(folder) or path == folder:
        raise ProviderError(f"{where}: its code is said to be in {name!r}, which is not inside the model's folder")
    return path


def _restored(where: str, path: Path, target: str, engines: Sequence[Engine]) -> Restored:
    by_name = {engine.name: engine for engine in engines}
    try:
        variants = Package.open(path).variants(target)
        missing = {plan.engine for variant in variants for plan in variant.plans} - by_name.keys()
        if missing:
            raise ProviderError(f"{where}: it needs the engine {', '.join(sorted(missing))}, which is not here")
        codes = tuple(_code(where, variant, by_name) for variant in variants)
    except ProviderError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        raise ProviderError(f"{where}: {error}") from error
    return Restored(codes, variants[0].opened)


def _code(where: str, variant: TargetProgram, engines: Mapping[str, Engine]) -> Compiled:
    plans = tuple(engines[plan.engine].restore(plan.payload) for plan in variant.plans)
    origins = tuple(f"{where}: {plan.origin}" for plan in variant.plans)
    return Compiled.of(variant.program, plans, variant.constants, origins=origins)


def save_model(
    path: str | os.PathLike[str],
    source: onnx.ModelProto | str | os.PathLike[str],
    name: str,
    variants: Sequence[TargetProgram],
    *,
    embed: bool | None = None,
) -> None:
    """Write a model whose only node holds ``source`` as a whole, compiled for targets; no device is needed.

    Args:
        path: of the model that is written.
        source: what was compiled, or its path; its inputs and outputs become those of the model.
        name: of the model.
        variants: what `hipdnn_backend.offload.compile_model` gave, or `compile_shapes`.
        embed: the code goes into the model, otherwise into a file beside it; default: if it is smaller than 1 GiB,
            since an ONNX file ends at 2 GiB.

    Raises:
        ProviderError: it cannot be written, or the source is no ONNX model.
    """
    path, program = Path(path), variants[0].program
    graph = _graph_of(source)
    dtypes = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    dims = {
        named.name: list[int | str](program.views[named.view].dims) for named in (*program.inputs, *program.outputs)
    }
    for dim in variants[0].opened:
        for places, arguments in ((dim.inputs, program.inputs), (dim.outputs, program.outputs)):
            for at in places:
                dims[arguments[at.number].name][at.axis] = dim.name if at.per == 1 else f"{at.per}*{dim.name}"
    # the dims of results follow from sizes that are not padded as well, which nobody has written down
    unknown = {named.name for named in program.outputs} if any(dim.refusal for dim in variants[0].opened) else set()

    def info(named: Any) -> onnx.ValueInfoProto:
        known = None if named.name in unknown else dims[named.name]
        return helper.make_tensor_value_info(named.name, dtypes[named.name], known)

    data = pack(name, variants)
    where = _Where(len(data) < _MAX_EMBEDDED if embed is None else embed, path.parent, path.stem)
    reads, gives = ([each.name for each in arguments] for arguments in (program.inputs, program.outputs))
    node = helper.make_node(OP_TYPE, reads, gives, name, domain=DOMAIN)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in where.attributes(name, data).items())
    inputs, outputs = ([info(each) for each in arguments] for arguments in (program.inputs, program.outputs))
    made = helper.make_graph([node], name, inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=8, producer_name="fusilli-plugin")
    try:
        _write(path, model.SerializeToString())
    except ValueError as error:
        raise ProviderError(f"{path}: the code is too large for an ONNX file; do not embed it") from error


def _graph_of(source: onnx.ModelProto | str | os.PathLike[str]) -> onnx.GraphProto:
    if isinstance(source, onnx.ModelProto):
        return source.graph
    try:
        return onnx.load(str(source), load_external_data=False).graph
    except (OSError, ValueError, DecodeError) as error:
        raise ProviderError(f"{source} is no ONNX model: {error}") from error
