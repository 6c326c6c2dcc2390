"""Every attribute of every ONNX operator with each of its values: models made from onnx's node cases and schemas.

A case of onnx's node suite gives the operands; the operator's schema gives the attributes, one of which is changed at a
time: every word it may be, every flag, numbers around those that make sense, the default, and what means nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import AttributeProto, defs, helper
from onnx.reference import ReferenceEvaluator

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.weights import static_operands
from hipdnn_backend.offload.frontend.words import FLAGS, WORDS
from tests.support.onnx_rewritten import ort, rewritten

__all__ = ["NONSENSE", "Mutant", "judged_apart", "mutants", "string_attributes"]

NONSENSE: Final = "mirrored"
"""A word that no attribute may be."""

_OPSETS: Final = (7, 10, 11, 12, 13, 18, 20, 21, 22, 23, 24)


@dataclass(frozen=True)
class Mutant:
    """A model of one node with one attribute changed.

    Attributes:
        name: says what was changed.
        model: the model.
        feeds: its inputs.
        attribute: that was changed.
        value: it has now; None if it was left out.
    """

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Any]
    attribute: str
    value: Any


def string_attributes() -> list[tuple[str, str, bool]]:
    """(operator, attribute, is it a list) of ONNX's own domain, of all opsets."""
    kinds = (defs.OpSchema.AttrType.STRING, defs.OpSchema.AttrType.STRINGS)
    found = {
        (schema.name, name, each.type == kinds[1])
        for schema in defs.get_all_schemas_with_history()
        if schema.domain == ""
        for name, each in schema.attributes.items()
        if each.type in kinds
    }
    return sorted(found)


def mutants(case: Any) -> Iterator[Mutant]:
    """The models that are made of a case of onnx's node suite."""
    (node,) = case.model.graph.node
    version = next(each.version for each in case.model.opset_import if each.domain in ("", "ai.onnx"))
    schema = defs.get_schema(node.op_type, version, node.domain)
    feeds = dict(zip((value.name for value in case.model.graph.input), case.data_sets[0][0], strict=False))
    ranks = [np.asarray(feeds[name]).ndim for name in node.input if name in feeds]
    given = {each.name: each for each in node.attribute}
    for name, attribute in schema.attributes.items():
        old = helper.get_attribute_value(given[name]) if name in given else None
        values = [*_values(node.op_type, name, attribute, old, ranks[0] if ranks else 0)]
        if name in given and not attribute.required:
            values.append(None)
        for value in values:
            yield Mutant(f"{case.name}/{name}={value}", _changed(case.model, name, value), feeds, name, value)
    if version > _OPSETS[0]:
        for older in _OPSETS:
            if older < version and _same_form(node, older):
                model = onnx.ModelProto()
                model.CopyFrom(case.model)
                for each in model.opset_import:
                    each.version = older if each.domain in ("", "ai.onnx") else each.version
                yield Mutant(f"{case.name}/opset={older}", model, feeds, "opset", older)


def _same_form(node: onnx.NodeProto, version: int) -> bool:
    try:
        schema = defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return False
    return all(each.name in schema.attributes for each in node.attribute) and (
        schema.min_input <= len(node.input) <= schema.max_input
    )


def _values(op_type: str, name: str, attribute: Any, old: Any, rank: int) -> Iterator[Any]:
    kind, kinds = attribute.type, defs.OpSchema.AttrType
    if kind in (kinds.STRING, kinds.STRINGS):
        words = WORDS.get((op_type, name), ())
        count = len(old) if isinstance(old, list) else 1
        for word in (*words, NONSENSE) if words else ():
            yield [word] * count if kind == kinds.STRINGS else word
    elif kind == kinds.INT and name in FLAGS:
        yield from (0, 1, 2)
    elif kind == kinds.INT and name in ("axis", "batch_dims", "time_axis", "batch_axis"):
        yield from dict.fromkeys((-rank - 1, -rank, -1, 0, 1, rank - 1, rank))
    elif kind == kinds.INT:
        yield from dict.fromkeys((-1, 0, 1, 2, 3))
    elif kind == kinds.FLOAT:
        yield from (0.0, 0.5, -1.5)
    elif kind == kinds.INTS and isinstance(old, list):
        yield from ([each] * len(old) for each in (0, 1, 2, -1))
        yield list(range(len(old)))
        yield from ([*old, 1], old[:-1]) if old else ()


def _changed(model: onnx.ModelProto, name: str, value: Any) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (node,) = copy.graph.node
    kept = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        kind = AttributeProto.INTS if value == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    for output in copy.graph.output:
        output.type.tensor_type.ClearField("shape")
    return copy


# ---- what should come out, and what does


def _oracles(mutant: Mutant) -> list[Sequence[np.ndarray]]:
    """What ONNX Runtime and onnx's reference give, those of them that run the model."""
    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):  # what they raise has no common base; then the other one alone counts
            found.append(ort(mutant.model, mutant.feeds))
        with contextlib.suppress(Exception):
            found.append([np.asarray(each) for each in ReferenceEvaluator(mutant.model).run(None, dict(mutant.feeds))])
    return found


def _verdicts(mutant: Mutant) -> Iterator[str]:
    """What holds of a mutant as far as it got, should the process end there; the last one is the verdict.

    "right", "refused: why", "unknown" (nobody else runs it, or ONNX Runtime ends the process), or "WRONG: what".
    """
    yield _ENDED
    (node,) = mutant.model.graph.node
    fixed = static_operands(node.op_type)
    bound = {name: mutant.feeds[name] for i, name in enumerate(node.input) if i in fixed and name in mutant.feeds}
    try:
        load(mutant.model, inputs=bound)
        graph = prepare(mutant.model, inputs=bound)
    except ModelError as error:
        said = str(error)
        if mutant.value == NONSENSE and not (mutant.attribute in said and NONSENSE in said):
            yield f"WRONG: refused for another reason: {said}"
        else:
            yield f"refused: {said}"
        return
    if mutant.value in (NONSENSE, [NONSENSE]):
        yield "WRONG: taken"
        return
    yield "unknown"
    if wanted := _oracles(mutant):
        yield _ENDED
        with np.errstate(all="ignore"):  # divisions by zero are values like others
            have = rewritten(graph, mutant.feeds)
        said = [_differs(have, want) for want in wanted]
        yield "right" if "" in said else f"WRONG: {said[0]}"


_ENDED: Final = "WRONG: crash or hang"


def judged_apart(some: Sequence[Mutant], seconds: int = 60) -> dict[str, str]:
    """Name → verdict, found in processes of their own: a crash or a hang is a verdict too, the rest gets another."""
    found: dict[str, str] = {}
    while left := [mutant for mutant in some if mutant.name not in found]:
        found |= _judged_while_it_lasts(left, seconds)
    return found


def _judged_while_it_lasts(some: Sequence[Mutant], seconds: int) -> dict[str, str]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(write, "w") as pipe:
            for mutant in some:
                signal.alarm(seconds)
                try:
                    for verdict in _verdicts(mutant):
                        print(json.dumps([mutant.name, verdict]), file=pipe, flush=True)
                except BaseException as error:
                    print(json.dumps([mutant.name, f"WRONG: raised {error!r}"]), file=pipe, flush=True)
                signal.alarm(0)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = dict(json.loads(line) for line in pipe)
    os.waitpid(child, 0)
    assert found, f"the process ended before it said anything of {some[0].name}"
    return found


def _differs(have: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    for number, (one, other) in enumerate(zip(have, want, strict=True)):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"output {number} is {one.dtype} {one.shape}, expected {other.dtype} {other.shape}"
        half = other.dtype.itemsize == 2
        rtol, atol = (1e-2, 4e-3) if half else (1e-3, 1e-5)
        if other.dtype.kind in "OUS":
            continue
        if not np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True):
            return f"output {number} has other values"
    return ""
