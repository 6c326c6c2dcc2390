"""Programs as JSON documents: what a saved model holds. Reading checks all of it, since anybody may have written it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hipdnn_backend.offload.program.program import (
    Buffer,
    Copy,
    Execute,
    Named,
    PlannedGraph,
    Program,
    ProgramError,
    Space,
    Step,
    View,
)

__all__ = ["VERSION", "from_document", "to_document"]

VERSION: Final = 2
_MAX_NUMBER: Final = 2**62


def to_document(program: Program) -> dict[str, Any]:
    """The program as a JSON document."""
    return {
        "version": VERSION,
        "name": program.name,
        "arena": program.arena,
        "alignment": program.alignment,
        "inputs": [[each.name, each.view] for each in program.inputs],
        "outputs": [[each.name, each.view] for each in program.outputs],
        "constants": [[each.name, each.view] for each in program.constants],
        "buffers": [[str(each.space), each.name, each.nbytes, each.offset] for each in program.buffers],
        "views": [
            [each.buffer, each.offset, list(each.dims), list(each.strides), each.dtype] for each in program.views
        ],
        "graphs": [
            {
                "name": each.name,
                "engine": each.engine,
                "plan": each.plan,
                "inputs": list(each.inputs),
                "outputs": list(each.outputs),
                "workspace": each.workspace_size,
                "nodes": list(each.nodes),
            }
            for each in program.graphs
        ],
        "steps": [_step_document(step) for step in program.steps],
        "setup": program.setup,
    }


def _step_document(step: Step) -> dict[str, Any]:
    if isinstance(step, Copy):
        return {"copy": [step.source, step.target]}
    return {"execute": step.graph, "operands": list(step.operands), "workspace": step.workspace}


def from_document(document: object) -> Program:
    """The program that a document describes, checked.

    Raises:
        ProgramError: it describes none.
    """
    top = _object(document, "program")
    version = _number(_field(top, "version", "program"), "version")
    if version != VERSION:
        raise ProgramError(f"version {version} of a program is unknown, this reads {VERSION}; save the model again")
    program = Program(
        name=_text(_field(top, "name", "program"), "name"),
        inputs=_named(top, "inputs"),
        outputs=_named(top, "outputs"),
        constants=_named(top, "constants"),
        buffers=tuple(_buffer(*item) for item in _items(top, "buffers")),
        views=tuple(_view(*item) for item in _items(top, "views")),
        graphs=tuple(_graph(*item) for item in _items(top, "graphs")),
        steps=tuple(_step(*item) for item in _items(top, "steps")),
        setup=_number(_field(top, "setup", "program"), "setup"),
        arena=_number(_field(top, "arena", "program"), "arena"),
        alignment=_number(_field(top, "alignment", "program"), "alignment"),
    )
    if program.alignment < 1 or program.alignment & (program.alignment - 1):
        raise ProgramError(f"alignment {program.alignment} is no power of two")
    program.check()
    return program


def _named(top: Mapping[str, Any], key: str) -> tuple[Named, ...]:
    made = []
    for item, where in _items(top, key):
        name, view = _array(item, where, 2)
        made.append(Named(_text(name, where), _number(view, where)))
    return tuple(made)


def _buffer(item: object, where: str) -> Buffer:
    space, name, nbytes, offset = _array(item, where, 4)
    try:
        kind = Space(_text(space, where))
    except ValueError:
        raise ProgramError(f"{where}: {space!r} is no kind of memory") from None
    return Buffer(kind, _text(name, where), _number(nbytes, where), _number(offset, where))


def _view(item: object, where: str) -> View:
    buffer, offset, dims, strides, dtype = _array(item, where, 5)
    return View(
        _number(buffer, where), _number(offset, where), _numbers(dims, where), _numbers(strides, where),
        _text(dtype, where),
    )  # fmt: skip


def _graph(item: object, where: str) -> PlannedGraph:
    fields = _object(item, where)
    return PlannedGraph(
        name=_text(_field(fields, "name", where), where),
        engine=_text(_field(fields, "engine", where), where),
        plan=_number(_field(fields, "plan", where), where),
        inputs=_uids(_field(fields, "inputs", where), where),
        outputs=_uids(_field(fields, "outputs", where), where),
        workspace_size=_number(_field(fields, "workspace", where), where),
        nodes=tuple(_text(name, where) for name in _array(_field(fields, "nodes", where), where)),
    )


def _step(item: object, where: str) -> Step:
    fields = _object(item, where)
    if "copy" in fields:
        source, target = _numbers(fields["copy"], where, 2)
        return Copy(source, target)
    return Execute(
        _number(_field(fields, "execute", where), where),
        _numbers(_field(fields, "operands", where), where),
        _number(_field(fields, "workspace", where), where),
    )


def _items(top: Mapping[str, Any], key: str) -> list[tuple[Any, str]]:
    return [(item, f"{key}[{n}]") for n, item in enumerate(_array(_field(top, key, "program"), key))]


def _field(fields: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in fields:
        raise ProgramError(f"{where}: '{key}' is missing")
    return fields[key]


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ProgramError(f"{where}: an object is expected, got {type(value).__name__}")
    return value


def _array(value: object, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise ProgramError(f"{where}: an array{f' of {length}' if length else ''} is expected, got {str(value)[:80]}")
    return value


def _numbers(value: object, where: str, length: int | None = None) -> tuple[int, ...]:
    return tuple(_number(item, where) for item in _array(value, where, length))


def _uids(value: object, where: str) -> tuple[int, ...]:
    """Uids are 64-bit numbers of either sign."""
    return tuple(_number(item, where, least=-(2**63)) for item in _array(value, where))


def _number(value: object, where: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2 * _MAX_NUMBER:
        raise ProgramError(f"{where}: {value!r} is no number that can stand here")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ProgramError(f"{where}: a string is expected, got {str(value)[:80]}")
    return value
