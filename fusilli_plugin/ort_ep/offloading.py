"""The offload pipeline as this provider uses it: what would be taken of a model, and a model compiled."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx

from fusilli_ground.locks import fork_safe_lock
from fusilli_plugin.ort_ep.groups import Role
from graph_api import FusilliError
from hipdnn_backend.engine import Engine, Plan
from hipdnn_backend.offload.errors import PassError
from hipdnn_backend.offload.program.program import Program

if TYPE_CHECKING:
    from hipdnn_backend.offload.node_outcomes import Absorbed
    from hipdnn_backend.offload.pipeline import Partition

__all__ = ["Compiled", "UncompiledError", "Verdict", "compile_model", "fingerprint", "survey"]

_LOG: Final = logging.getLogger(__name__)
_GPU_ALIGNMENT: Final = 256
_CPU_ALIGNMENT: Final = 64


@dataclass(frozen=True)
class Verdict:
    """What the pipeline makes of a node.

    Attributes:
        role: see `Role`.
        engine: that takes it, "" if none does or if nothing runs for it.
        reason: why it is not a hipDNN operation of an engine's, "" if it is.
        rest: the same of a part of it; engines cannot tell before they try whether they compile that.
    """

    role: Role
    engine: str = ""
    reason: str = ""
    rest: str = ""


class UncompiledError(FusilliError):
    """No engine compiles some nodes of a model.

    Attributes:
        nodes: name → why.
        reproducer: file with the IR, if one was written.
    """

    def __init__(self, text: str, nodes: Mapping[str, str], reproducer: Path | None) -> None:
        self.nodes = nodes
        self.reproducer = reproducer
        super().__init__(text)


@dataclass(frozen=True)
class Compiled:
    """A model ready to be prepared on a device; shared by all that are equal, so arguments go by position.

    Attributes:
        constants: by name, as the program wants them.
        inputs: dims of each input.
        outputs: dims of each output.
        seconds: that it took.
        graphs: wire form of each graph by name, for a dump.
        origins: where each plan was read, none if they were built.
    """

    program: Program
    plans: tuple[Plan, ...]
    constants: Mapping[str, np.ndarray[Any, Any]]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    seconds: float = 0.0
    graphs: Mapping[str, bytes] = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, program: Program, plans: Sequence[Plan], constants: Mapping[str, np.ndarray[Any, Any]], **more: Any
    ) -> Compiled:
        """What belongs to a program."""
        inputs, outputs = (
            tuple(program.views[named.view].dims for named in arguments)
            for arguments in (program.inputs, program.outputs)
        )
        return cls(program, tuple(plans), constants, inputs, outputs, **more)

    def ordered(self, inputs: Sequence[int], outputs: Sequence[int]) -> Compiled:
        """The same with its arguments in another order, given by their numbers now.

        Raises:
            ValueError: the numbers are not those of all arguments.
        """
        program = self.program
        for numbers, arguments in ((inputs, program.inputs), (outputs, program.outputs)):
            if sorted(numbers) != list(range(len(arguments))):
                raise ValueError(f"the program has {len(arguments)} arguments, its node has {len(numbers)}")
        turned = replace(
            program,
            inputs=tuple(program.inputs[number] for number in inputs),
            outputs=tuple(program.outputs[number] for number in outputs),
        )
        return Compiled.of(turned, self.plans, self.constants, seconds=self.seconds, graphs=self.graphs)


# MLIR contexts are made and used by one thread at a time here: sessions that are made concurrently take turns, and
# what takes long, the engines' compilers, runs in processes of its own anyway.
_pipeline_lock: Final = fork_safe_lock()
# Shared as long as somebody has it: it holds the weights.
_kept: weakref.WeakValueDictionary[tuple[str, ...], Compiled] = weakref.WeakValueDictionary()


def survey(model: onnx.ModelProto, engines: Sequence[Engine]) -> dict[str, Verdict]:
    """What the pipeline would make of each node of a model, by name; nothing is compiled.

    Raises:
        OffloadError: it cannot be told, because the model contradicts itself or a pass failed.
    """
    from hipdnn_backend.offload.frontend import load
    from hipdnn_backend.offload.pipeline import partition

    with _pipeline_lock:
        imported = load(model, strict=False)
        found = partition(imported, engines=engines)
        return _verdicts(model, found, imported.opaque, imported.absorbed)


def _verdicts(
    model: onnx.ModelProto, found: Partition, opaque: Mapping[str, str], absorbed: Mapping[str, Absorbed]
) -> dict[str, Verdict]:
    """One verdict per node: the best of its operations decides its role, one that nobody takes decides against it."""
    engines: dict[str, str] = {}
    roles: dict[str, Role] = {}
    for group in found.groups:
        role = Role.LEFTOVER if group.custom else Role.CORE
        for node in group.nodes:
            roles[node] = max(role, roles.get(node, Role.NONE))
            engines.setdefault(node, group.engine)
    reasons = {each.node: _reason(each.reasons) for each in found.unclaimed}
    grouped = {operation for group in found.groups if group.custom for operation in group.nodes}
    for node in reasons.keys() - grouped:
        roles[node] = Role.NONE
    for node, reason in opaque.items():
        roles[node], reasons[node] = Role.NONE, reason
    verdicts: dict[str, Verdict] = {}
    for node in model.graph.node:
        worker = _worker(node.name, absorbed)
        role = roles.get(worker, Role.FREE)
        engine = engines.get(worker, "") if role is not Role.NONE else ""
        reason = reasons.get(worker, "")
        verdicts[node.name] = Verdict(role, engine, "" if role is Role.CORE else reason, reason)
    return verdicts


def _worker(node: str, absorbed: Mapping[str, Absorbed]) -> str:
    """The node whose operations do a node's work in the end, "" if none has to."""
    seen: set[str] = set()
    while node in absorbed and node not in seen:
        seen.add(node)
        into = absorbed[node].into
        node = into[0] if len(into) == 1 else ""
    return node


def _reason(reasons: Mapping[str, Any]) -> str:
    texts = [f"{engine or 'hipDNN'}: {support.reason}" for engine, support in reasons.items()]
    return "; ".join(dict.fromkeys(texts)) or "no engine takes it"


def fingerprint(model: onnx.ModelProto) -> str:
    """A hash that is the same for models that differ in names only."""
    digest = sha256()
    numbers: dict[str, str] = {"": ""}

    def number(name: str) -> str:
        return numbers.setdefault(name, f"v{len(numbers)}")

    for value in (*model.graph.input, *model.graph.output):
        digest.update(
            onnx.ValueInfoProto(name=number(value.name), type=value.type).SerializeToString(deterministic=True)
        )
    digest.update(b"|")
    constants = {constant.name: constant for constant in model.graph.initializer}
    for node in model.graph.node:
        for name in node.input:
            if name in constants and name not in numbers:
                constant = constants[name]
                digest.update(f"{number(name)} {constant.data_type} {list(constant.dims)} ".encode())
                digest.update(constant.raw_data)
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        plain.ClearField("input")
        plain.ClearField("output")
        plain.ClearField("name")
        plain.input.extend(number(name) for name in node.input)
        plain.output.extend(number(name) for name in node.output)
        digest.update(plain.SerializeToString(deterministic=True))
    digest.update(repr([(item.domain, item.version) for item in model.opset_import]).encode())
    return digest.hexdigest()


def compile_model(model: onnx.ModelProto, engines: Sequence[Engine], *, place: str, on_gpu: bool) -> Compiled:
    """Compile a model, or take what was made of an equal one.

    Args:
        model: with static shapes.
        engines: in the order in which they are asked.
        place: what the engines are for, e.g. a device: equal models share what was compiled for one place.
        on_gpu: memory is aligned as GPUs want it.

    Raises:
        UncompiledError: no engine compiles some nodes.
        OffloadError: the model or a pass failed.
        EngineError: an engine failed.
    """
    key = (fingerprint(model), place, *(engine.name for engine in engines))
    with _pipeline_lock:
        made = _kept.get(key)
        if made is None:
            made = _kept[key] = _compile(model, engines, _GPU_ALIGNMENT if on_gpu else _CPU_ALIGNMENT)
        return made


def _compile(model: onnx.ModelProto, engines: Sequence[Engine], alignment: int) -> Compiled:
    """As for a whole model, but nodes that no engine compiles are named, so that they go back to ONNX Runtime."""
    from hipdnn_backend.offload.frontend import load
    from hipdnn_backend.offload.passes.graph_to_executable import NotCompiledError
    from hipdnn_backend.offload.pipeline import run
    from hipdnn_backend.offload.program.lowering import lower

    start = time.perf_counter()
    imported = load(model)
    try:
        done = run(imported, engines=engines)
    except PassError as error:
        failures = error.__cause__.failures if isinstance(error.__cause__, NotCompiledError) else ()
        nodes = {name: str(failure) for failure in failures for name in failure.nodes}
        if not nodes:
            raise
        raise UncompiledError(str(error), nodes, error.reproducer) from error
    constants = {constant.name: constant.value for constant in imported.constants}
    dtypes = (each.dtype for each in (*imported.inputs, *constants.values(), *imported.outputs))
    lowered = lower(
        done.module,
        done.graphs,
        inputs=[each.name for each in imported.inputs],
        constants=list(constants),
        outputs=[each.name for each in imported.outputs],
        name=imported.name,
        alignment=alignment,
        dtypes=list(dtypes),
    )
    return Compiled.of(
        lowered.program,
        lowered.plans,
        {**constants, **lowered.literals},
        seconds=time.perf_counter() - start,
        graphs={name: graph.wire for name, graph in done.graphs.items()},
    )
