"""The text of a custom operation: filling in its template, and checking it before it reaches a compiler.

The text comes from outside. What passes here is one function of known operations on plain numbers: no string but
iterator kinds, the argument of ``torch.constant.str`` and the bits of constants, no symbol but its own name, no
attribute or type of another dialect, no loop but ``torch.prim.Loop`` with a constant number of rounds. So it cannot
name a file, a library or another function, and it ends. It is read by a small tokenizer, without MLIR.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from graph_api.ops.custom_op import CustomOpNode
from iree_bridge.targets.types import ELEMENT, value_tensor

__all__ = ["CustomTextError", "checked_text", "fill_template"]

_PLACEHOLDER = re.compile(r"\{(FUNC_NAME|(?:IN|OUT)\d+_(?:TYPE|DTYPE|DIM\d+))\}")
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<string>"[^"\\\n]*")
      | (?P<value>%(?:\d+|[A-Za-z$._-][\w$.-]*)(?:[:\#]\d+)?)
      | (?P<symbol>@[\w$.-]+)
      | (?P<block>\^[A-Za-z_]\w*)
      | (?P<type>![A-Za-z_][\w.]*)
      | (?P<attribute>\#[A-Za-z_][\w.]*)
      | (?P<bits>0x[0-9A-Fa-f]+\b)
      | (?P<shape>(?:\d+x)+[A-Za-z]\w*)
      | (?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_][\w.$]*)
      | (?P<mark>->|==|[()\[\]{}<>,:=+*?-])""",
    re.VERBOSE | re.ASCII,
)
_DEPTH = 32
_ROUNDS = 1 << 20  # of nested loops, multiplied
_ITERATORS = ('"parallel"', '"reduction"')
_STRING = re.compile(r'"[A-Za-z0-9_,. >-]{0,64}"', re.ASCII)  # as long as the equation of an einsum
_ELEMENT_BITS = re.compile(r'"0x[0-9A-Fa-f]*"', re.ASCII)

_OPERATIONS = re.compile(
    r"func\.return|return"
    r"|torch\.(?:aten|prims|constant)\.[\w.]+|torch\.vtensor\.literal"
    r"|torch\.prim\.(?:ListConstruct|ListUnpack|NumToTensor\.Scalar|(?:min|max)\.(?:int|self_int)"
    r"|Loop(?:\.condition)?|If(?:\.yield)?)"
    r"|torch\.(?:tensor_static_info_cast|derefine)|torch_c\.(?:to|from)_builtin_tensor"
    r"|(?:arith|math|linalg|tensor|iree_linalg_ext)\.\w+",
    re.ASCII,
)
_DETERMINANT = "its elimination exchanges no rows, and what it compiles to writes over what it reads"
_REFUSED_OPERATIONS = {
    "torch.constant.device": "tensors have no device of their own",
    # its lowering reads at positions outside the image, which are allowed
    "torch.aten.grid_sampler": "compiled code would read outside the image for positions outside of it",
    **dict.fromkeys(("torch.aten.linalg_det", "torch.aten._linalg_det", "torch.aten.linalg_slogdet"), _DETERMINANT),
}
_RANDOM = re.compile(
    r"torch\.(?:aten|prims)\.(?:rand|(?:log_)?normal|uniform|bernoulli|multinomial|exponential|poisson|geometric|cauchy)"
    r"[\w.]*",
    re.ASCII,
)
_TYPES = re.compile(
    r"!torch\.(?:vtensor|int|float|bool|none|str|list|optional|number|q[us]?int8|qint(?:16|32))", re.ASCII
)
_ATTRIBUTES = re.compile(r"#(?:arith\.(?:fastmath|overflow)|linalg\.iterator_type)", re.ASCII)
_ELEMENTS = r"bf16|f16|f32|f64|f8E\w+|[su]?i\d{1,2}|index|complex"
_SHAPE = re.compile(rf"(?:\d+x)+(?:{_ELEMENTS})", re.ASCII)
_WORDS = re.compile(
    rf"(?:{_ELEMENTS}|[a-z]{{1,2}}\d{{0,2}}"
    r"|tensor|list|optional|vtensor|int|float|bool|none|str|number"
    r"|true|false|dense|array|affine_map|indexing_maps|iterator_types|parallel|reduction|value"
    r"|ins|outs|into|output_shape|permutation|dimensions|dimension|dim|low|high|nofold|unique|axis|init|iter|else|to"
    r"|ceildiv|floordiv|mod|symbol"
    r"|eq|ne|[su](?:lt|le|gt|ge)|[ou](?:eq|ne|lt|le|gt|ge)|ord|uno|one|une"
    r"|fastmath|overflow|contract|reassoc|nnan|ninf|nsz|arcp|afn|fast|nsw|nuw)",
    re.ASCII,
)


class CustomTextError(Exception):
    """Why a text is refused: a short rule and a reason with the place."""

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        super().__init__(reason)


def fill_template(node: CustomOpNode, name: str) -> str:
    """The node's template with its placeholders replaced; the function is called ``name``.

    Raises:
        CustomTextError: a placeholder of a tensor or a dim that the node does not have.
    """
    known = {"FUNC_NAME": name}
    for side, tensors in (("IN", node.inputs), ("OUT", node.outputs)):
        for index, tensor in enumerate(tensors.values()):
            prefix = f"{side}{index}_"
            known[prefix + "TYPE"] = value_tensor(tensor.dims, tensor.data_type)
            known[prefix + "DTYPE"] = ELEMENT[tensor.data_type]
            known |= {f"{prefix}DIM{axis}": str(size) for axis, size in enumerate(tensor.dims)}

    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise CustomTextError("placeholder", f"{match[0]} names nothing that the operation has")
        return known[match[1]]

    return _PLACEHOLDER.sub(value, node.attributes.data)


def checked_text(node: CustomOpNode, name: str) -> str:
    """The filled-in text of the node, which is one function of the right signature and of allowed words only.

    Raises:
        CustomTextError: something else.
    """
    if "@{FUNC_NAME}" not in node.attributes.data:
        raise CustomTextError("signature", "the template must define 'func.func private @{FUNC_NAME}'")
    text = fill_template(node, name)
    tokens = _tokens(text)
    body = _signature(node, name, [token for _, token in tokens])
    _check_nesting([token for _, token in tokens], body)
    _check_loops([token for _, token in tokens], body)
    for before, (kind, token) in zip(["", *(token for _, token in tokens[body:])], tokens[body:], strict=False):
        _check_token(kind, token, before)
    return text


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            line = text.count("\n", 0, position) + 1
            raise CustomTextError("syntax", f"line {line}: {text[position : position + 20]!r} is not allowed here")
        if match.lastgroup != "space":
            tokens.append((match.lastgroup or "", match[0]))
        position = match.end()
    return tokens


def _signature(node: CustomOpNode, name: str, tokens: Sequence[str]) -> int:
    """Checks what stands before the body; returns where the body begins."""
    wanted = ["func.func", "private", f"@{name}", "("]
    position = len(wanted)
    if list(tokens[:position]) != wanted:
        start = " ".join(tokens[:4])
        raise CustomTextError(
            "signature", f"the text must begin with 'func.func private @{{FUNC_NAME}}(', not {start!r}"
        )
    for index, tensor in enumerate(node.inputs.values()):
        kind = value_tensor(tensor.dims, tensor.data_type)
        argument = [*([","] if index else []), "%", ":", *(token for _, token in _tokens(kind))]
        found = list(tokens[position : position + len(argument)])
        shown = [token[:1] if token.startswith("%") else token for token in found]
        if shown != argument:
            raise CustomTextError("signature", f"argument {index} must be '%name: {kind}', got {' '.join(found)!r}")
        position += len(argument)
    results = [value_tensor(tensor.dims, tensor.data_type) for tensor in node.outputs.values()]
    listed = ", ".join(results)
    forms = [f") -> ({listed}) {{", *([f") -> {listed} {{"] if len(results) == 1 else [])]
    for form in forms:
        ending = [token for _, token in _tokens(form)]
        if list(tokens[position : position + len(ending)]) == ending:
            return position + len(ending) - 1
    found = " ".join(tokens[position : position + 12])
    raise CustomTextError("signature", f"the arguments must end in '{forms[-1]}', got {found!r}")


_PAIRS = {")": "(", "]": "[", "}": "{"}


def _check_nesting(tokens: Sequence[str], body: int) -> None:
    """The brace at ``body`` must close at the very end."""
    open_marks: list[str] = []
    for position, token in enumerate(tokens[body:], body):
        if token in _PAIRS.values():
            open_marks.append(token)
        elif token in _PAIRS and (not open_marks or open_marks.pop() != _PAIRS[token]):
            raise CustomTextError("syntax", f"'{token}' closes nothing")
        if len(open_marks) > _DEPTH:
            raise CustomTextError("syntax", f"brackets are nested more than {_DEPTH} deep")
        if not open_marks and position != len(tokens) - 1:
            raise CustomTextError("signature", f"one function is allowed; {tokens[position + 1]!r} follows it")
    if open_marks:
        raise CustomTextError("syntax", f"'{open_marks[-1]}' is not closed")


def _check_loops(tokens: Sequence[str], body: int) -> None:
    """Each loop must take its number of rounds from a constant of the function's own block, defined before it.

    No nested block can define such a name anew, so it means what it says.
    """
    constants: dict[str, int] = {}
    factors: list[int] = []  # rounds of each open brace
    pending = 1
    for position in range(body, len(tokens)):
        token = tokens[position]
        if token == "{":
            factors.append(pending)
            pending = 1
            if math.prod(factors) > _ROUNDS:
                raise CustomTextError("dialect", f"its loops make {math.prod(factors)} rounds, at most {_ROUNDS}")
        elif token == "}":
            factors.pop()
        elif token == "torch.constant.int" and len(factors) == 1 and tokens[position - 1] == "=":
            if re.fullmatch(r"\d{1,9}", tokens[position + 1], re.ASCII):
                constants[tokens[position - 2]] = int(tokens[position + 1])
        elif token == "torch.prim.Loop":
            if tokens[position + 1] not in constants:
                raise CustomTextError(
                    "dialect",
                    f"the number of rounds of torch.prim.Loop, {tokens[position + 1]}, is no earlier constant",
                )
            pending = max(constants[tokens[position + 1]], 1)


def _check_token(kind: str, token: str, before: str) -> None:
    word = before == "torch.constant.str" and _STRING.fullmatch(token)
    word = word or (before == "<" and _ELEMENT_BITS.fullmatch(token))  # dense<"0x...">
    if kind == "string" and token not in _ITERATORS and not word:
        raise CustomTextError(
            "attribute", f"string {token[:40]} is refused; torch.constant.str takes one, a short word"
        )
    if kind == "symbol":
        raise CustomTextError("attribute", f"symbol {token[:40]} is refused; the function may name no other")
    if kind == "type" and not _TYPES.fullmatch(token):
        raise CustomTextError("dialect", f"type {token} is refused; allowed are static torch types and builtin tensors")
    if kind == "attribute" and not _ATTRIBUTES.fullmatch(token):
        raise CustomTextError("attribute", f"attribute {token} is refused; allowed are those of arith and linalg")
    if kind == "shape" and not _SHAPE.fullmatch(token):
        raise CustomTextError("dialect", f"shape {token[:40]} has no known element type")
    if kind == "word" and _RANDOM.fullmatch(token):
        reason = "compiled code gives draws that look alike the same numbers, and multinomial writes outside its result"
        raise CustomTextError("dialect", f"operation {token} is refused: {reason}")
    if kind == "word" and token in _REFUSED_OPERATIONS:
        raise CustomTextError("dialect", f"operation {token} is refused: {_REFUSED_OPERATIONS[token]}")
    if kind == "word" and "." in token and not _OPERATIONS.fullmatch(token):
        raise CustomTextError(
            "dialect",
            f"operation {token} is refused; allowed are torch.aten, torch.prims, torch.constant, arith, math, linalg, "
            "tensor and iree_linalg_ext",
        )
    if kind == "word" and "." not in token and not (_WORDS.fullmatch(token) or token == "return"):
        raise CustomTextError("attribute", f"word {token[:40]!r} is refused: it is no type and no known attribute")
