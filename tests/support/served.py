"""Which operations are served of which data types on which targets, as the support rules answer, and what they say.

A graph of each operation in each data type is shown to ``iree_bridge.support``, in all modes that the operation has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from graph_api import (
    CustomOpAttributes,
    DataType,
    Graph,
    GraphError,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
    TensorAttr,
)
from graph_api.ops.pointwise import MODES
from iree_bridge import Target, support
from tests.cases import all_cases

__all__ = ["PROBES", "TARGETS", "Decline", "answers", "graph", "other_declines", "section"]

D = DataType
TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx950", "cpu")
Dims = tuple[int, ...]
Probe = Callable[[Graph, DataType], Any]
Probes = Callable[[], Iterator[tuple[str, Probe]]]
"""Names of modes, or "", and what adds the operation to a graph whose tensors have a data type."""


# ---- a graph of each operation -------------------------------------------------------------------------------------


def _one(probe: Probe) -> Probes:
    return lambda: iter((("", probe),))


def _channels(g: Graph, *names: str) -> list[TensorAttr]:
    return [g.tensor(name, dim=(1, 6, 1, 1)) for name in names]


def _image(g: Graph, name: str = "x") -> TensorAttr:
    return g.tensor(name, dim=(2, 6, 8, 8))


def _conv(g: Graph, d: DataType) -> Any:
    return g.conv_fprop(_image(g), g.tensor("w", dim=(4, 6, 3, 3)), padding=1)


def _dgrad(g: Graph, d: DataType) -> Any:
    return g.conv_dgrad(g.tensor("dy", dim=(2, 4, 8, 8)), g.tensor("w", dim=(4, 6, 3, 3)), padding=1)


def _wgrad(g: Graph, d: DataType) -> Any:
    return g.conv_wgrad(g.tensor("dy", dim=(2, 4, 8, 8)), _image(g), padding=1).set_dim((4, 6, 3, 3))


def _batchnorm(g: Graph, d: DataType) -> Any:
    return g.batchnorm(_image(g), *_channels(g, "scale", "bias"), epsilon=1e-5)


def _batchnorm_backward(g: Graph, d: DataType) -> Any:
    return g.batchnorm_backward(_image(g, "dy"), _image(g), *_channels(g, "scale"))


def _batchnorm_inference(g: Graph, d: DataType) -> Any:
    return g.batchnorm_inference(_image(g), *_channels(g, "mean", "inv_variance", "scale", "bias"))


def _batchnorm_variance(g: Graph, d: DataType) -> Any:
    operands = _channels(g, "mean", "variance", "scale", "bias")
    return g.batchnorm_inference_variance_ext(_image(g), *operands, epsilon=1e-5)


def _rows(g: Graph, *names: str) -> list[TensorAttr]:
    return [g.tensor(name, dim=(6, 16) if name in ("x", "dy") else (1, 16)) for name in names]


def _layernorm(g: Graph, d: DataType) -> Any:
    return g.layernorm(*_rows(g, "x", "scale", "bias"), epsilon=1e-5, forward_phase=NormFwdPhase.TRAINING)


def _layernorm_backward(g: Graph, d: DataType) -> Any:
    return g.layernorm_backward(*_rows(g, "dy", "x", "scale"), epsilon=1e-5)


def _rmsnorm(g: Graph, d: DataType) -> Any:
    return g.rmsnorm(*_rows(g, "x", "scale"), epsilon=1e-5, forward_phase=NormFwdPhase.TRAINING)


def _rmsnorm_backward(g: Graph, d: DataType) -> Any:
    dy, x, scale = _rows(g, "dy", "x", "scale")
    return g.rmsnorm_backward(dy, x, scale, g.tensor("inv_rms", dim=(6, 1), data_type=D.FLOAT))


def _matmul(g: Graph, d: DataType) -> Any:
    return g.matmul(g.tensor("a", dim=(6, 16)), g.tensor("b", dim=(16, 8)))


def _pointwise() -> Iterator[tuple[str, Probe]]:
    def probe(mode: PointwiseMode) -> Probe:
        axis = {"axis": 1} if mode is PointwiseMode.GEN_INDEX else {}
        return lambda g, d: g.pointwise(
            mode, *(g.tensor(f"in_{i}", dim=(6, 16)) for i in range(MODES[mode].arity)), compute_data_type=_compute(d),
            **axis,
        )  # fmt: skip

    for mode in MODES:
        yield mode.name, probe(mode)


def _compute(dtype: DataType) -> DataType:
    return D.DOUBLE if dtype is D.DOUBLE else D.FLOAT


def _reduction() -> Iterator[tuple[str, Probe]]:
    for mode in ReductionMode:
        yield mode.name, lambda g, d, m=mode: g.reduction(_rows(g, "x")[0], mode=m).set_dim((6, 1))


def _pooling(mode: ResampleMode) -> dict[str, Any]:
    return {"mode": mode, "window": 2, "stride": 2}


def _resample() -> Iterator[tuple[str, Probe]]:
    for mode in ResampleMode:
        yield mode.name, lambda g, d, m=mode: g.resample_fwd(_image(g), **_pooling(m))
    index = _pooling(ResampleMode.MAXPOOL)
    yield "MAXPOOL with an index", lambda g, d: g.resample_fwd(_image(g), generate_index=True, **index)


def _resample_backward() -> Iterator[tuple[str, Probe]]:
    for mode in ResampleMode:

        def probe(g: Graph, d: DataType, mode: ResampleMode = mode) -> Any:
            index = g.tensor("index", dim=(2, 6, 8, 8), data_type=D.INT32) if mode is ResampleMode.MAXPOOL else None
            return g.resample_bwd(_image(g, "dy"), index=index, **_pooling(mode))

        yield mode.name, probe


def _heads(g: Graph, *names: str) -> list[TensorAttr]:
    return [g.tensor(name, dim=(1, 2, 8, 16)) for name in names]


def _sdpa(g: Graph, d: DataType) -> Any:
    return g.sdpa(*_heads(g, "q", "k", "v"), generate_stats=True)


def _sdpa_backward(g: Graph, d: DataType) -> Any:
    stats = g.tensor("stats", dim=(1, 2, 8, 1), data_type=D.FLOAT)
    q, k, v, o, do = _heads(g, "q", "k", "v", "o", "do")
    return g.sdpa_backward(q, k, v, o, do, stats)


def _routing(g: Graph, name: str, count: int) -> TensorAttr:
    dims = (count, 1, 1) if name == "offsets" else (1, count, 1)
    return g.tensor(name, dim=dims, data_type=D.INT32)


def _moe() -> Iterator[tuple[str, Probe]]:
    for mode in MoeGroupedMatmulMode:

        def probe(g: Graph, d: DataType, mode: MoeGroupedMatmulMode = mode) -> Any:
            token, weight = g.tensor("token", dim=(1, 12, 8)), g.tensor("weight", dim=(4, 8, 16))
            names = {"NONE": (), "GATHER": ("index",), "SCATTER": ("index", "choice")}[mode.name]
            routing = [_routing(g, name, 12) for name in names]
            top_k = 2 if mode.name == "SCATTER" else 0
            return g.moe_grouped_matmul(token, weight, _routing(g, "offsets", 4), *routing, mode=mode, top_k=top_k)

        yield mode.name, probe


def _moe_backward(g: Graph, d: DataType) -> Any:
    doutput, token = g.tensor("doutput", dim=(1, 12, 16)), g.tensor("token", dim=(1, 12, 8))
    return g.moe_grouped_matmul_bwd(doutput, token, _routing(g, "offsets", 4))


def _dequantize(g: Graph, d: DataType) -> Any:
    scale = g.tensor("scale", dim=(6, 2), data_type=D.FP8_E8M0)
    return g.block_scale_dequantize(g.tensor("x", dim=(6, 64)), scale, block_size=32).set_data_type(D.FLOAT)


def _quantize(g: Graph, d: DataType) -> Any:
    x = g.tensor("x", dim=(6, 64))
    y, scale = g.block_scale_quantize(x, block_size=32, compute_data_type=_compute(d))
    return y.set_data_type(D.FP8_E4M3), scale.set_data_type(D.FP8_E8M0)


def _quantize_to(g: Graph, d: DataType) -> Any:
    x = g.tensor("x", dim=(6, 64), data_type=D.FLOAT)
    y, scale = g.block_scale_quantize(x, block_size=32, compute_data_type=D.FLOAT)
    return y.set_data_type(d), scale.set_data_type(D.FP8_E8M0)


_TEXT = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}) -> {OUT0_TYPE} {
  %none = torch.constant.none
  %y = torch.aten.clone %x, %none : {IN0_TYPE}, !torch.none -> {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
"""


def _custom(g: Graph, d: DataType) -> Any:
    attributes = CustomOpAttributes(custom_op_id="fusilli.clone", data=_TEXT, reference=lambda x: [x])
    (y,) = g.custom_op([g.tensor("x", dim=(6, 16))], 1, attributes)
    return y.set_dim((6, 16))


PROBES: dict[tuple[str, str], Probes] = {
    ("batchnorm", ""): _one(_batchnorm),
    ("batchnorm_backward", ""): _one(_batchnorm_backward),
    ("batchnorm_inference", ""): _one(_batchnorm_inference),
    ("batchnorm_inference_variance_ext", ""): _one(_batchnorm_variance),
    ("block_scale_dequantize", ""): _one(_dequantize),
    ("block_scale_quantize", "x"): _one(_quantize),
    ("block_scale_quantize", "y"): _one(_quantize_to),
    ("conv_dgrad", ""): _one(_dgrad),
    ("conv_fprop", ""): _one(_conv),
    ("conv_wgrad", ""): _one(_wgrad),
    ("custom_op", ""): _one(_custom),
    ("layernorm", ""): _one(_layernorm),
    ("layernorm_backward", ""): _one(_layernorm_backward),
    ("matmul", ""): _one(_matmul),
    ("moe_grouped_matmul", ""): _moe,
    ("moe_grouped_matmul_bwd", ""): _one(_moe_backward),
    ("pointwise", ""): _pointwise,
    ("reduction", ""): _reduction,
    ("resample_bwd", ""): _resample_backward,
    ("resample_fwd", ""): _resample,
    ("rmsnorm", ""): _one(_rmsnorm),
    ("rmsnorm_backward", ""): _one(_rmsnorm_backward),
    ("sdpa", ""): _one(_sdpa),
    ("sdpa_backward", ""): _one(_sdpa_backward),
}
"""Of each operation, and where several tensors have types of their own of each of these, its graphs."""


def graph(probe: Probe, dtype: DataType) -> Graph:
    """The graph that a probe makes, validated: all results are outputs."""
    g = Graph("probe", io_data_type=dtype, intermediate_data_type=dtype)
    probe(g, dtype)
    for tensor in g.nodes[-1].outputs.values():
        tensor.set_output(True)
    return g.validate()


# ---- what the rules answer -----------------------------------------------------------------------------------------


class Decline(NamedTuple):
    """Why a graph is declined: the rule, and what the product says. Rule "graph": it is no valid graph."""

    rule: str
    reason: str


Row = tuple[str, str]
Cell = Mapping[tuple[str, str], Decline | None]
"""(mode, target) -> None where it is served."""


@cache
def answers() -> Mapping[Row, Mapping[DataType, Cell]]:
    """What the support rules say of every operation in every data type."""
    return {row: {dtype: _cell(probes, dtype) for dtype in DataType} for row, probes in PROBES.items()}


def _cell(probes: Probes, dtype: DataType) -> Cell:
    cell: dict[tuple[str, str], Decline | None] = {}
    for mode, probe in probes():
        try:
            made = graph(probe, dtype)
        except GraphError as error:
            cell.update({(mode, target): Decline("graph", str(error)) for target in TARGETS})
            continue
        for target in TARGETS:
            answer = support(made, Target.parse(target))
            cell[mode, target] = None if answer.ok else Decline(answer.rule, answer.reason)
    return cell


# ---- as a section of docs/support.md -------------------------------------------------------------------------------

_SECTION = """## Served, or why not

What the support rules answer of each operation whose main operands and results have one data type, with row-major
tensors and no further options. *yes*: every mode is served on {targets}. *no* and *partly*
name the sentence below that the product prints, here of one such graph; rule `graph` is an error, since no such graph
can be made. `fusilli explain` says the same of a graph of yours.

{table}

{notes}

### Declines of other kinds

Each rule by which cases of the tables are declined, with what it says of one of them.

{others}
"""


def section() -> str:
    """Which types are served, why the others are not, and what else is declined."""
    notes: dict[tuple[str, ...], int] = {}
    cells = {row: {dtype: _said(row, cell, notes) for dtype, cell in of.items()} for row, of in answers().items()}
    columns = _groups({dtype: tuple(cells[row][dtype] for row in cells) for dtype in DataType})
    rows = _groups({row: tuple(cells[row][dtypes[0]] for dtypes in columns) for row in cells})
    head = ["operation", *("<br>".join(dtype.name for dtype in dtypes) for dtypes in columns)]
    lines = [head, ["---"] * len(head)]
    for group in rows:
        lines.append([", ".join(map(_name, group)), *(cells[group[0]][dtypes[0]] for dtypes in columns)])
    others = [["operation", "rule", "on", "it says"], ["---"] * 4, *other_declines()]
    return _SECTION.format(
        targets=", ".join(TARGETS), table=_table(lines), others=_table(others),
        notes="\n".join(f"{number}. {' '.join(parts)}" for parts, number in notes.items()),
    )  # fmt: skip


def other_declines() -> list[list[str]]:
    """Operation, rule, targets and sentence of what the case tables have declined."""
    found: dict[tuple[str, str, str], str] = {}
    for _, case in all_cases():
        if not case.declined:
            continue
        made = case.graph()
        said = {target: answer for target in TARGETS if not (answer := support(made, Target.parse(target))).ok}
        for rule in dict.fromkeys(answer.rule for answer in said.values()):
            on = [target for target, answer in said.items() if answer.rule == rule]
            node = next((node for node in made.nodes if node.name == said[on[0]].node), made.nodes[0])
            found.setdefault((node.op, rule, _listed(on, TARGETS)), said[on[0]].reason)
    return [[f"`{op}`", f"`{rule}`", on, _escaped(reason)] for (op, rule, on), reason in sorted(found.items())]


def _said(row: Row, cell: Cell, notes: dict[tuple[str, ...], int]) -> str:
    """The text of a cell; what it refers to goes into ``notes``."""
    declined = {key: answer for key, answer in cell.items() if answer is not None}
    if not declined:
        return "yes"
    numbers: list[int] = []
    for rule in dict.fromkeys(answer.rule for answer in declined.values()):
        keys = [key for key, answer in declined.items() if answer.rule == rule]
        modes = _listed(dict.fromkeys(mode for mode, _ in keys), dict.fromkeys(mode for mode, _ in cell))
        on = _listed(dict.fromkeys(target for _, target in keys), TARGETS)
        where = ", ".join(part for part in (_name(row), modes if modes != "all" else "", f"on {on}") if part)
        same = next((number for parts, number in notes.items() if parts[0] == f"{where}, rule `{rule}`:"), None)
        if same is None:
            same = notes[f"{where}, rule `{rule}`:", _escaped(declined[keys[0]].reason)] = len(notes) + 1
        numbers.append(same)
    word = "no" if len(declined) == len(cell) else "partly"
    return f"{word} ({', '.join(map(str, numbers))})"


def _name(row: Row) -> str:
    op, tensor = row
    return f"`{op}`" + (f", of {tensor}" if tensor else "")


def _listed(some: Sequence[str] | Mapping[str, Any], everything: Sequence[str] | Mapping[str, Any]) -> str:
    return "all" if len(some) == len(everything) else ", ".join(some)


def _groups(keyed: Mapping[Any, tuple[str, ...]]) -> list[list[Any]]:
    """Keys with equal values together, in order of the first."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for key, value in keyed.items():
        found.setdefault(value, []).append(key)
    return list(found.values())


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """A sentence in a cell of Markdown."""
    return re.sub(r"([|<>*\[\]])", r"\\\1", " ".join(text.split()))
