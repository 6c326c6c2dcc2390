"""The text of ``hipdnn.execute``: the walkthrough's syntax, which MLIR itself does not know, both ways.

    %0 = hipdnn.execute graph("hipdnn_graph_0") ins(%a, %w : tensor<4xf32>, tensor<2xf32>)
        outs(%e : tensor<3xf32>) -> tensor<3xf32>

The operation is not registered, since Python cannot give it syntax; MLIR prints and parses it in its generic form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.mlir import ir

__all__ = ["generic", "parse", "pretty", "to_text"]

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_GENERIC = re.compile(
    r'^(?P<indent>\s*(?:%[\w.$-]+(?::\d+)?(?:, %[\w.$-]+(?::\d+)?)* = )?)"hipdnn\.execute"\((?P<operands>[^)]*)\) '
    rf"\{{graph = (?P<graph>{_STRING}), operandSegmentSizes = array<i32: (?P<ins>\d+), (?P<outs>\d+)>\}} : "
    r"(?P<type>.*)$",
    re.MULTILINE,
)
_TOKEN = re.compile(rf"{_STRING}|//[^\n]*|(?<![\w.$%@#!-])hipdnn\.execute(?![\w.$-])")
_HEAD = re.compile(rf"\s*graph\(\s*(?P<graph>{_STRING})\s*\)")
_OPEN, _CLOSE = "<([{", ">)]}"


def to_text(module: Any, *, local_scope: bool = False, locations: bool = False, elide: int | None = None) -> str:
    """The module in the walkthrough's syntax.

    Args:
        module: an `ir.Module`.
        local_scope: print attributes in place instead of as aliases in front.
        locations: print where each operation comes from.
        elide: elements above which constants are not printed; the text then does not parse back to the same module.
    """
    return pretty(
        module.operation.get_asm(
            use_local_scope=local_scope,
            enable_debug_info=locations,
            large_elements_limit=elide,
            large_resource_limit=elide,
        )
    )


def parse(text: str, context: Any, *, source: str = "<text>") -> Any:
    """The module that a text in either form describes.

    Args:
        text: MLIR, operations of the hipDNN dialect in the walkthrough's or the generic syntax.
        context: of the module, see ``_mlir.new_context``.
        source: what errors call the text.

    Raises:
        ModelError: it is not MLIR, or does not verify; the diagnostics say where.
    """
    if "\0" in text:
        raise ModelError(source, "mlir", f"the text has a NUL character at offset {text.index(chr(0))}")
    try:
        return ir.Module.parse(generic(text), context)
    except ir.MLIRError as error:
        raise ModelError(source, "mlir", f"this is no valid MLIR module: {error}") from None
    except ValueError as error:
        raise ModelError(source, "mlir", str(error)) from None


# ---- to the pretty form


def pretty(text: str) -> str:
    """Replaces each generic ``"hipdnn.execute"`` of MLIR's output by the pretty form."""
    return _GENERIC.sub(_pretty, text)


def _pretty(match: re.Match[str]) -> str:
    operands = _split(match["operands"])
    inputs, rest = _enclosed(match["type"], 0)
    types = _split(inputs)
    arrow = match["type"][rest:].removeprefix(" -> ")
    count = int(match["ins"])
    ins = _typed(operands[:count], types[:count])
    outs = _typed(operands[count:], types[count:])
    result = arrow.removeprefix("()") if arrow.startswith("()") else f" -> {arrow}"
    return f"{match['indent']}hipdnn.execute graph({match['graph']}) ins({ins}) outs({outs}){result}"


def _typed(values: list[str], types: list[str]) -> str:
    return f"{', '.join(values)} : {', '.join(types)}" if values else ""


def _split(text: str) -> list[str]:
    """The parts between commas that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE and text[position - 1 : position] != "-":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def _enclosed(text: str, start: int) -> tuple[str, int]:
    """What the parentheses that open at ``start`` enclose, and the position behind them.

    Raises:
        ValueError: there are none, or they do not close.
    """
    if text[start : start + 1] != "(":
        raise ValueError(f"expected '(' before {text[start : start + 20]!r}")
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position], position + 1
    raise ValueError(f"'(' is not closed: {text[start : start + 40]!r}")


# ---- to the generic form


def generic(text: str) -> str:
    """Replaces each pretty ``hipdnn.execute`` by the generic form.

    Raises:
        ValueError: one is malformed; the message has its line.
    """
    return "".join(_generic_parts(text))


def _generic_parts(text: str) -> Iterator[str]:
    done = 0
    for token in _TOKEN.finditer(text):
        if token.group() != "hipdnn.execute" or token.start() < done:
            continue
        yield text[done : token.start()]
        try:
            form, done = _generic(text, token.end())
        except ValueError as error:
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(f"line {line}: hipdnn.execute: {error}") from None
        yield form
    yield text[done:]


def _generic(text: str, start: int) -> tuple[str, int]:
    head = _HEAD.match(text, start)
    if head is None:
        raise ValueError('expected graph("name")')
    ins, in_types, position = _group(text, head.end(), "ins")
    outs, out_types, position = _group(text, position, "outs")
    arrow = re.compile(r"\s*->\s*").match(text, position)
    results = "()"
    if arrow:
        results, position = _result_types(text, arrow.end(), len(out_types))
    attributes = f"graph = {head['graph']}, operandSegmentSizes = array<i32: {len(ins)}, {len(outs)}>"
    types = ", ".join([*in_types, *out_types])
    return f'"hipdnn.execute"({", ".join([*ins, *outs])}) {{{attributes}}} : ({types}) -> {results}', position


def _group(text: str, start: int, keyword: str) -> tuple[list[str], list[str], int]:
    opening = re.compile(rf"\s*{keyword}\s*(?=\()").match(text, start)
    if opening is None:
        raise ValueError(f"expected {keyword}(...)")
    inside, position = _enclosed(text, opening.end())
    values, _colon, types = inside.partition(":")
    names, kinds = _split(values), _split(types)
    if len(names) != len(kinds):
        raise ValueError(f"{keyword} has {len(names)} operands and {len(kinds)} types")
    return names, kinds, position


def _result_types(text: str, start: int, count: int) -> tuple[str, int]:
    if text[start : start + 1] == "(":
        inside, position = _enclosed(text, start)
        kinds = _split(inside)
    else:
        kind = re.compile(r"[\w.!]+<").match(text, start)
        if kind is None:
            raise ValueError("expected a type behind '->'")
        position, depth = kind.end(), 1
        while depth and position < len(text):
            depth += {"<": 1, ">": -1}.get(text[position], 0) if text[position - 1] != "-" else 0
            position += 1
        kinds = [text[start:position]]
    if len(kinds) != count:
        raise ValueError(f"{count} outs and {len(kinds)} results")
    return f"({', '.join(kinds)})", position
