"""Texts of custom operations for a compiler to convert, most of which nobody would write.

They call operations of the torch dialect by PyTorch's own schemas, with operands of the right kinds; results have the
types that PyTorch finds for them on its `meta` device. Some numbers and types are others in the text.

A text is kept with what it is attached to: its first line, a comment, has the dims and element types of the tensors of
its graph. `Texts` has them written by a process of its own, ``python -m tests.support.hostile_texts SEED``: PyTorch
does not survive each question.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from graph_api import CustomOpAttributes, Graph, GraphError
from iree_bridge.targets.types import ELEMENT
from tests.cases.custom_op import ADD, CONSTANT, FLOOR, GENERIC, SOFTMAX, TWO

if TYPE_CHECKING:
    import torch

__all__ = ["Texts", "graph_of", "seeds"]

_DTYPES: Final = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "si64": "int64", "si32": "int32",
    "si8": "int8", "ui8": "uint8", "i1": "bool",
}  # fmt: skip
_ELEMENTS: Final = {dtype: element for element, dtype in _DTYPES.items()} | {"complex64": "complex<f32>"}
_DATA_TYPES: Final = {element: dtype for dtype, element in ELEMENT.items()}
_DIMS: Final = (
    (2, 3), (3, 2), (3,), (4, 4), (1, 2, 3), (2, 3, 4, 4), (3, 3, 1, 1), (2, 3, 2, 2, 2), (), (1,), (2, 3, 8),
)  # fmt: skip
_INTS: Final = (0, 1, 2, -1, 3, 1, -2, 4, 6)
_HOSTILE_INTS: Final = (
    -(2**63), 2**63 - 1, 2**63, 2**62, 2**32, 2**31, 2**31 - 1, -(2**31), 10**12, 65536, 1000, 64, 7, -3, -100,
)  # fmt: skip
_FLOATS: Final = ("1.0", "0.5", "0.0", "-1.0", "1.0e-05", "2.0")
_HOSTILE_FLOATS: Final = ("1.0e+308", "-1.0e+308", "0x7FF0000000000000", "0x7FF8000000000000", "1.0e-320", "1.0e400")
_WORDS: Final = ("none", "mean", "sum", "floor", "trunc", "tanh", "constant", "reflect", "replicate", "ij,jk->ik", "")
_TYPES: Final = (
    "!torch.vtensor", "!torch.vtensor<*,f32>", "!torch.vtensor<[],f32>", "!torch.vtensor<[?],f32>",
    "!torch.vtensor<[0],f32>", "!torch.vtensor<[2,3]>", "!torch.vtensor<[65536,65536,65536,65536],f32>",
    "!torch.vtensor<[9223372036854775807],f32>", "!torch.vtensor<[2,3],complex<f32>>", "!torch.vtensor<[2,3],f8E4M3FN>",
    "!torch.vtensor<[2,3],!torch.qint8>", "!torch.vtensor<[2,3],si4>", "!torch.list<int>", "!torch.list<list<int>>",
    "!torch.list<vtensor>", "!torch.list<optional<vtensor>>", "!torch.optional<int>", "!torch.none", "!torch.number",
    "!torch.int", "!torch.float", "!torch.bool", "!torch.str", "tensor<2x3xf32>", "tensor<?x3xf32>", "f32", "index",
)  # fmt: skip
_CALLED: Final = tuple(
    "torch.aten." + name
    for name in (
        "add.Tensor", "sub.Tensor", "matmul", "mm", "bmm", "view", "reshape", "cat", "stack", "slice.Tensor", "permute",
        "expand", "unsqueeze", "squeeze.dim", "flatten.using_ints", "sum.dim_IntList", "max.dim", "convolution",
        "max_pool2d", "avg_pool2d", "upsample_nearest2d", "index.Tensor", "index_put", "gather", "scatter.src",
        "constant_pad_nd", "roll", "topk", "sort", "cumsum", "arange.start_step", "full", "zeros", "to.dtype",
        "size.int", "item", "div.int", "remainder.int", "native_layer_norm", "embedding", "select.int", "as_strided",
    )
)  # fmt: skip
_TOKEN: Final = re.compile(r"!torch\.\w+(?:<[^\s()]*>)?|torch[\w.]+|%[\w:#]+|-?\d[\d.e+-]*|\w+|\s+|.", re.DOTALL)
_MAX_TRIES: Final = 6
_MAX_RANK: Final = 8
_MAX_WRITERS: Final = 10


# ---- what a text is attached to


def graph_of(data: bytes) -> Graph:
    """The graph of one custom operation that a text belongs to.

    Raises:
        GraphError: the first line does not say.
    """
    text = data.decode("utf-8", "replace")
    head, _, body = text.partition("\n")
    try:
        ports = json.loads(head.removeprefix("//"))
        inputs, outputs = ([(tuple(map(int, dims)), _DATA_TYPES[kind]) for dims, kind in side] for side in ports)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise GraphError(f"the first line is not that of a text: {error}") from None
    graph = Graph("hostile")
    tensors = [graph.tensor(f"x{i}", dim=dims, data_type=dtype) for i, (dims, dtype) in enumerate(inputs)]
    attributes = CustomOpAttributes(custom_op_id="fusilli.hostile", data=body)
    made = graph.custom_op(tensors, len(outputs), attributes)
    for i, (tensor, (dims, dtype)) in enumerate(zip(made, outputs, strict=True)):
        tensor.set_name(f"y{i}").set_dim(dims).set_data_type(dtype).set_output()
    return graph.validate()


def _with_ports(text: str, inputs: Sequence[tuple[Any, str]], outputs: Sequence[tuple[Any, str]]) -> bytes:
    return f"//{json.dumps([list(inputs), list(outputs)])}\n{text.lstrip()}".encode()


def seeds() -> list[bytes]:
    """Texts that compile, of the torch dialect and of the others that are allowed."""
    square, turned = ((4, 3), "f32"), ((3, 4), "f32")
    served = [
        (ADD, [square, square], [square]), (TWO, [square], [square, turned]), (GENERIC, [square], [square]),
        (SOFTMAX, [square], [square]), (CONSTANT, [], [((3,), "f32")]), (FLOOR, [square], [square]),
        (_LOOP, [square, square], [square]), (_IF, [square, square], [square]),
    ]  # fmt: skip
    return [_with_ports(*each) for each in served]


_LOOP: Final = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}, %y: {IN1_TYPE}) -> {OUT0_TYPE} {
  %n = torch.constant.int 5
  %one = torch.constant.int 1
  %true = torch.constant.bool true
  %r = torch.prim.Loop %n, %true, init(%x) {
  ^bb0(%i: !torch.int, %acc: {IN0_TYPE}):
    %next = torch.aten.add.Tensor %acc, %y, %i : {IN0_TYPE}, {IN1_TYPE}, !torch.int -> {IN0_TYPE}
    torch.prim.Loop.condition %true, iter(%next : {IN0_TYPE})
  } : (!torch.int, !torch.bool, {IN0_TYPE}) -> {OUT0_TYPE}
  return %r : {OUT0_TYPE}
}
"""
_IF: Final = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}, %y: {IN1_TYPE}) -> {OUT0_TYPE} {
  %zero = torch.constant.int 0
  %size = torch.aten.size.int %x, %zero : {IN0_TYPE}, !torch.int -> !torch.int
  %more = torch.aten.gt.int %size, %zero : !torch.int, !torch.int -> !torch.bool
  %r = torch.prim.If %more -> ({OUT0_TYPE}) {
    torch.prim.If.yield %x : {IN0_TYPE}
  } else {
    %s = torch.aten.mul.Tensor %x, %y : {IN0_TYPE}, {IN1_TYPE} -> {OUT0_TYPE}
    torch.prim.If.yield %s : {OUT0_TYPE}
  }
  return %r : {OUT0_TYPE}
}
"""


# ---- new texts


@dataclass(frozen=True)
class _Operation:
    """One that PyTorch and the dialect both have."""

    name: str
    call: Any
    schema: Any


@cache
def _operations() -> tuple[_Operation, ...]:
    """Those that return tensors or numbers, and change nothing in place."""
    import torch
    from torch_mlir.dialects import _torch_ops_gen

    classes = [each for each in vars(_torch_ops_gen).values() if hasattr(each, "OPERATION_NAME")]
    known = {each.OPERATION_NAME for each in classes}
    found = []
    for schema in sorted(torch._C._jit_get_all_schemas(), key=str):
        space, _, short = schema.name.partition("::")
        name = ".".join(["torch", space, short, *([schema.overload_name] if schema.overload_name else [])])
        kinds = {str(each.type) for each in schema.returns}
        if name in known and kinds and kinds <= {"Tensor", "int", "bool", "float"} and not short.endswith("_"):
            packet = getattr(getattr(torch.ops, space), short, None)
            call = getattr(packet, schema.overload_name or "default", None)
            found.append(_Operation(name, call, schema))
    return tuple(found)


@dataclass(frozen=True)
class _Value:
    """Something that the text has named, and what it is to PyTorch."""

    name: str
    type: str
    meaning: Any


class _NoOperandError(Exception):
    """The schema wants what no text can have."""


class _Writer:
    """Writes one text.

    Args:
        source: of chance.
        hostile: how often a number or a type is another than PyTorch was asked about.
    """

    def __init__(self, source: random.Random, *, hostile: float) -> None:
        self._source, self._hostile = source, hostile
        self._lines: list[str] = []
        self._tensors: list[_Value] = []
        self._count = 0

    def text(self) -> bytes:
        """A function of a few operations, each on what is there."""
        source = self._source
        inputs = [(source.choice(_DIMS), source.choice(("f32", "f32", *_DTYPES))) for _ in range(source.randint(1, 3))]
        for index, (dims, element) in enumerate(inputs):
            self._tensors.append(_Value(f"%in{index}", f"{{IN{index}_TYPE}}", _meta(dims, element)))
        results: list[_Value] = []
        for _ in range(source.choice((1, 1, 2, 3, 5))):
            results += self._operation()
        arguments = ", ".join(f"{value.name}: {value.type}" for value in self._tensors[: len(inputs)])
        returned = [self._returned(value, index) for index, value in enumerate(results[-4:] or self._tensors[:1])]
        kinds = ", ".join(f"{{OUT{index}_TYPE}}" for index in range(len(returned)))
        names = ", ".join(name for name, _ in returned)
        lines = [f"func.func private @{{FUNC_NAME}}({arguments}) -> ({kinds}) {{", *self._lines]
        return _with_ports("\n".join([*lines, f"  return {names} : {kinds}", "}"]), inputs, [to for _, to in returned])

    def _operation(self) -> list[_Value]:
        """Writes one, and returns its tensors; mostly one that PyTorch has a result for."""
        operation = self._source.choice(_operations())
        lines, tensors = len(self._lines), len(self._tensors)
        for attempt in range(_MAX_TRIES):
            try:
                operands = [self._operand(str(each.type), each) for each in operation.schema.arguments]
            except _NoOperandError:
                del self._lines[lines:], self._tensors[tensors:]
                return []
            results = _asked(operation, [operand.meaning for operand in operands])
            if results is not None or (attempt + 1 == _MAX_TRIES and self._source.random() < 0.3):
                return self._called(operation, operands, results)
            del self._lines[lines:], self._tensors[tensors:]
        return []

    def _called(self, operation: _Operation, operands: Sequence[_Value], results: Sequence[Any] | None) -> list[_Value]:
        if results is None:
            results = [_meta(self._source.choice(_DIMS), "f32") if str(each.type) == "Tensor" else 1
                       for each in operation.schema.returns]  # fmt: skip
        made = [_Value(self._name(), self._type(each), each) for each in results]
        kinds = ", ".join(operand.type for operand in operands)
        self._lines.append(
            f"  {', '.join(value.name for value in made)} = {operation.name} "
            f"{', '.join(operand.name for operand in operands)} : {kinds} -> {', '.join(value.type for value in made)}"
        )
        tensors = [value for value in made if _is_tensor(value.meaning)]
        self._tensors += tensors
        return tensors or [self._as_tensor(value) for value in made]

    def _as_tensor(self, value: _Value) -> _Value:
        if isinstance(value.meaning, bool):
            value = self._line("torch.aten.Int.bool", [value], int(value.meaning))
        element = "si64" if isinstance(value.meaning, int) else "f64"
        return self._line("torch.prim.NumToTensor.Scalar", [value], _meta((), element))

    def _returned(self, value: _Value, index: int) -> tuple[str, tuple[tuple[int, ...], str]]:
        """Name and type of a result of the text."""
        if 0 in value.meaning.shape or value.meaning.is_complex():  # no graph has such tensors
            value = self._tensors[0]
        dims, element = tuple(value.meaning.shape), _element(value.meaning)
        name = self._name()
        self._lines.append(
            f"  {name} = torch.tensor_static_info_cast {value.name} : {value.type} to {{OUT{index}_TYPE}}"
        )
        return name, (dims, element)

    # ---- operands

    def _operand(self, kind: str, argument: Any) -> _Value:
        source = self._source
        if kind.startswith("Optional["):
            inner = kind.removeprefix("Optional[").removesuffix("]")
            if source.random() < 0.6 or inner in ("Device", "Generator"):
                return self._constant("none", "", "!torch.none", None)
            return self._operand(inner, argument)
        if argument is not None and argument.has_default_value() and source.random() < 0.6:
            return self._given(kind, argument.default_value)
        if kind == "Tensor":
            return source.choice(self._tensors) if source.random() < 0.8 else self._literal()
        if kind == "number":
            kind = source.choice(("int", "float"))
        if kind == "int":
            return self._given(kind, source.choice(_INTS))
        if kind == "float":
            return self._given(kind, float(source.choice(_FLOATS)))
        if kind == "bool":
            return self._given(kind, source.random() < 0.5)
        if kind == "str":
            return self._given(kind, source.choice(_WORDS))
        if kind.startswith("List["):
            inner = kind.removeprefix("List[").removesuffix("]")
            return self._list(inner, [self._operand(inner, None) for _ in range(source.choice((0, 1, 2, 2, 3, 4)))])
        raise _NoOperandError(kind)

    def _given(self, kind: str, value: Any) -> _Value:
        """A value of Python's as operands."""
        hostile = self._source.random() < self._hostile
        if value is None:
            return self._constant("none", "", "!torch.none", None)
        if isinstance(value, bool):
            return self._constant("bool", str(value).lower(), "!torch.bool", value)
        if isinstance(value, int):
            text = str(self._source.choice(_HOSTILE_INTS) if hostile else value)
            return self._constant("int", text, "!torch.int", value)
        if isinstance(value, float):
            text = self._source.choice(_HOSTILE_FLOATS) if hostile else f"{value:e}"
            return self._constant("float", text, "!torch.float", value)
        if isinstance(value, str):
            return self._constant("str", f'"{value}"', "!torch.str", value)
        if isinstance(value, list | tuple):
            inner = kind.removeprefix("List[").removesuffix("]")
            return self._list(inner, [self._given(inner, each) for each in value])
        raise _NoOperandError(kind)

    def _constant(self, kind: str, text: str, of_type: str, value: Any) -> _Value:
        made = _Value(self._name(), of_type, value)
        self._lines.append(f"  {made.name} = torch.constant.{kind} {text}".rstrip())
        return made

    def _list(self, inner: str, items: Sequence[_Value]) -> _Value:
        kinds = {"Tensor": "vtensor", "Optional[Tensor]": "optional<vtensor>", "number": "number"}
        of_type = f"!torch.list<{kinds.get(inner, inner)}>"
        made = _Value(self._name(), of_type, [item.meaning for item in items])
        self._lines.append(
            f"  {made.name} = torch.prim.ListConstruct {', '.join(item.name for item in items)} : "
            f"({', '.join(item.type for item in items)}) -> {of_type}"
        )
        return made

    def _literal(self) -> _Value:
        dims, element = self._source.choice(_DIMS), self._source.choice(("f32", "si64", "i1"))
        made = _Value(self._name(), _vtensor(dims, element), _meta(dims, element))
        number = {"f32": "1.5", "si64": "1", "i1": "true"}[element]
        plain = f"tensor<{'x'.join([*map(str, dims), element])}>"
        self._lines.append(f"  {made.name} = torch.vtensor.literal(dense<{number}> : {plain}) : {made.type}")
        self._tensors.append(made)
        return made

    def _line(self, operation: str, operands: Sequence[_Value], meaning: Any) -> _Value:
        made = _Value(self._name(), self._type(meaning), meaning)
        names, kinds = (", ".join(getattr(each, part) for each in operands) for part in ("name", "type"))
        self._lines.append(f"  {made.name} = {operation} {names} : {kinds} -> {made.type}")
        return made

    def _name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _type(self, meaning: Any) -> str:
        if not _is_tensor(meaning):
            return f"!torch.{type(meaning).__name__}"
        dims: list[Any] = list(meaning.shape)
        element = _element(meaning)
        if self._source.random() >= self._hostile:
            return _vtensor(dims, element)
        match self._source.randrange(4):
            case 0:
                return self._source.choice(_TYPES)
            case 1:
                return _vtensor(["?"] * len(dims), element)
            case 2:
                return _vtensor([*dims, self._source.choice((1, 2, 0, 65536))], element)
            case _:
                return _vtensor(dims, self._source.choice(tuple(_DTYPES)))


def _meta(dims: Sequence[int], element: str) -> torch.Tensor:
    import torch

    return torch.empty(tuple(dims), dtype=getattr(torch, _DTYPES[element]), device="meta")


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _element(tensor: torch.Tensor) -> str:
    return _ELEMENTS.get(str(tensor.dtype).removeprefix("torch."), "f32")


def _vtensor(dims: Sequence[Any], element: str) -> str:
    return f"!torch.vtensor<[{','.join(map(str, dims))}],{element}>"


def _asked(operation: _Operation, values: Sequence[Any]) -> list[Any] | None:
    """What PyTorch makes of it without data; None if it refuses."""
    if operation.call is None:
        return None
    named = {each.name: value for each, value in zip(operation.schema.arguments, values, strict=True)}
    positional = [named.pop(each.name) for each in operation.schema.arguments if not each.kwarg_only]
    with contextlib.suppress(Exception):  # all kinds
        made = operation.call(*positional, **named)
        results = list(made) if isinstance(made, tuple) else [made]
        if all(_is_small(result) for result in results):
            return results
    return None


def _is_small(result: Any) -> bool:
    if _is_tensor(result):
        return result.dim() <= _MAX_RANK and math.prod(result.shape) < 1 << 20
    return isinstance(result, bool | int | float)


def _write(seed: int) -> None:
    """Print one text after another, each as JSON on a line."""
    source = random.Random(seed)
    while True:
        data = _Writer(source, hostile=source.choice((0, 0.05, 0.2))).text()
        sys.stdout.write(json.dumps(data.decode()) + "\n")
        sys.stdout.flush()


# ---- damage


class Texts:
    """`tests.support.damage.Damage` of texts."""

    def __init__(self) -> None:
        self._lines: IO[str] | None = None

    def __call__(self, source: random.Random, data: bytes) -> bytes:
        """Another text, or this one with other numbers, operations, values, types or lines."""
        if source.random() < 0.65:
            return self._new(source)
        head, _, body = data.decode("utf-8", "replace").partition("\n")
        tokens = _TOKEN.findall(body)
        for _ in range(source.choice((1, 1, 2, 4))):
            _change(source, tokens)
        return f"{head}\n{''.join(tokens)}".encode()

    def _new(self, source: random.Random) -> bytes:
        for _ in range(_MAX_WRITERS):
            line = "" if self._lines is None else self._lines.readline()
            if line.endswith("\n"):
                return json.loads(line).encode()
            self._lines = _writer(source.randrange(2**32))
        raise RuntimeError("whatever writes texts ends before the first; is PyTorch installed?")


def _writer(seed: int) -> IO[str]:
    """The texts of a process, which ends when nobody reads them."""
    command = [sys.executable, "-m", "tests.support.hostile_texts", str(seed)]
    started = subprocess.Popen(
        command, cwd=Path(__file__).resolve().parents[2], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert started.stdout is not None
    return started.stdout


def _change(source: random.Random, tokens: list[str]) -> None:
    kinds = {
        "number": [at for at, token in enumerate(tokens) if re.fullmatch(r"-?\d[\d.e+-]*", token)],
        "operation": [at for at, token in enumerate(tokens) if token.startswith("torch.")],
        "value": [at for at, token in enumerate(tokens) if token.startswith("%")],
        "type": [at for at, token in enumerate(tokens) if token.startswith(("!torch.", "{IN", "{OUT"))],
        "line": [at for at, token in enumerate(tokens) if token.startswith("\n")],
    }
    kind = source.choice([name for name, places in kinds.items() if places] or [""])
    if not kind:
        return
    at = source.choice(kinds[kind])
    match kind:
        case "number":
            tokens[at] = str(source.choice((*_HOSTILE_INTS, *_INTS, *_HOSTILE_FLOATS)))
        case "operation":
            others = [token for token in tokens if token.startswith("torch.")]
            tokens[at] = source.choice((*others, *_CALLED))
        case "value":
            tokens[at] = tokens[source.choice(kinds["value"])]
        case "type":
            tokens[at] = source.choice((*_TYPES, tokens[source.choice(kinds["type"])]))
        case _:
            _change_line(source, tokens, at)


def _change_line(source: random.Random, tokens: list[str], at: int) -> None:
    """Leaves it out, or repeats it with results of other names."""
    end = next((i for i in range(at + 1, len(tokens)) if tokens[i].startswith("\n")), len(tokens))
    if source.random() < 0.4:
        del tokens[at:end]
        return
    line = tokens[at:end]
    for _ in range(source.choice((1, 1, 10, 300))):
        name = f"%n{source.randrange(10**6)}"
        tokens[end:end] = [name if i == 1 and token.startswith("%") else token for i, token in enumerate(line)]


if __name__ == "__main__":
    _write(int(sys.argv[1]))
