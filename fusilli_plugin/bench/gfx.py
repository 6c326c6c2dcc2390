"""``fusilli bench --suite gfx``: what code takes on an AMD chip, beside goals and the roofline; without a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from fusilli_ground.errors import FusilliError
from fusilli_plugin.bench.graphs import GraphRow, Kind
from graph_api import DataType
from iree_bridge import Options, Target, support
from iree_bridge.static.chips import Chip, chip_of
from iree_bridge.static.figures import Figures, figures

__all__ = [
    "COLUMNS",
    "GfxRow",
    "Roof",
    "cells",
    "gfx_html",
    "gfx_markdown",
    "gfx_summary",
    "inspected",
    "missed_goals",
    "roof",
]

_HALVES: Final = (DataType.HALF, DataType.BFLOAT16)
_MOST_OTHERS: Final = {Kind.PRODUCT: 2.0, Kind.CONVOLUTION: 3.0, Kind.ATTENTION: 4.0}
"""Instructions for each matrix instruction of the main loop that are none, in 16 bits."""
_CHANNELS: Final = 16
"""From so many on, products and convolutions in 16 bits are to be matrix instructions."""
_FAR: Final = 3.0
"""Times the roofline bound from which on a row is said to be far from it."""


@dataclass(frozen=True)
class GfxRow:
    """The figures of a row, for one target.

    Attributes:
        name: of the row.
        kind: what it mostly is.
        target: what it was compiled for.
        form: in which form.
        dispatches: kernels of a run.
        spills: registers that did not fit, and bytes of private memory.
        matrix: matrix instructions in the code, by mnemonic.
        others_per_matrix: other instructions of the main loop for each matrix instruction.
        vgprs, agprs, sgprs, lds: of the main kernel: registers, and bytes of local memory.
        waves: of it that a SIMD holds.
        workgroups: of its grid.
        units: compute units of the chip.
        flops: operations.
        bytes: of the arguments.
        bound_us: by the roofline.
        bound_by: ``operations`` or ``bytes``.
        estimate_us: by the figures of the code; no prediction.
        causes: what keeps the estimate from the bound.
        missed: goals that are missed, with what was seen.
        problem: why there are no figures.
    """

    name: str
    kind: str
    target: str
    form: str = ""
    dispatches: int | None = None
    spills: int = 0
    matrix: Mapping[str, int] | None = None
    others_per_matrix: float | None = None
    vgprs: int | None = None
    agprs: int | None = None
    sgprs: int | None = None
    lds: int | None = None
    waves: int | None = None
    workgroups: int | None = None
    units: int | None = None
    flops: int | None = None
    bytes: int | None = None
    bound_us: float | None = None
    bound_by: str = ""
    estimate_us: float | None = None
    causes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    problem: str = ""

    @property
    def far(self) -> float | None:
        """Times the bound that the estimate is."""
        return self.estimate_us / self.bound_us if self.estimate_us and self.bound_us else None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self) | {"far": self.far}


def inspected(
    rows: Iterable[GraphRow], target: Target, options: Options, tell: Callable[[str], None] = lambda text: None
) -> Iterator[GfxRow]:
    """The figures of each row, in their order; compiled anew by as many workers as the options allow."""

    def one(row: GraphRow) -> GfxRow:
        try:
            graph = row.graph()
            support(graph, target).require()
            return _row(row, figures(graph, target, options))
        except FusilliError as error:
            said = str(error).splitlines()[0]
            return GfxRow(row.name, row.kind, str(target), missed=("no code",), problem=said)

    wanted = list(rows)
    with ThreadPoolExecutor(options.workers, "fusilli-bench") as pool:
        for row, found in zip(wanted, pool.map(one, wanted), strict=True):
            tell(f"{row.name} for {target}")
            yield found


def _row(row: GraphRow, found: Figures) -> GfxRow:
    main = found.main
    kernel = None if main is None else main.kernel
    return GfxRow(
        name=row.name,
        kind=row.kind,
        target=str(found.target),
        form=found.form,
        dispatches=found.dispatches,
        spills=found.spills,
        matrix=found.inspection.matrix,
        others_per_matrix=found.others_per_matrix,
        vgprs=kernel and kernel.vgprs,
        agprs=kernel and kernel.agprs,
        sgprs=kernel and kernel.sgprs,
        lds=kernel and kernel.lds,
        waves=main and main.waves,
        workgroups=main and main.workgroups,
        units=found.chip and found.chip.units,
        flops=found.flops,
        bytes=found.bytes_least,
        bound_us=None if found.bound is None else 1e6 * found.bound,
        bound_by="" if found.bound is None else "operations" if found.is_compute_bound else "bytes",
        estimate_us=None if found.estimate is None else 1e6 * found.estimate,
        causes=tuple(found.causes()),
        missed=tuple(missed_goals(row, found)),
    )


def missed_goals(row: GraphRow, found: Figures) -> Iterator[str]:
    """The goals that a row's code misses, with what was seen."""
    most = 2 if row.is_gradient else 1
    if found.dispatches is None or found.dispatches > most:
        yield f"{found.dispatches} dispatches (at most {most})"
    if found.spills:
        yield f"spills: {found.spills} registers and bytes of private memory (none)"
    halves = row.graph().arguments().inputs[0].data_type in _HALVES
    multiplies = row.kind in (Kind.PRODUCT, Kind.CONVOLUTION) and row.channels >= _CHANNELS
    if halves and multiplies and not found.inspection.matrix:
        yield "no matrix instructions"
    others, limit = found.others_per_matrix, _MOST_OTHERS.get(row.kind)
    if halves and limit is not None and others is not None and others > limit and row.channels >= _CHANNELS:
        yield f"{others:.1f} others per matrix instruction (at most {limit:g})"


def gfx_summary(rows: Sequence[GfxRow]) -> dict[str, float | int]:
    """Rows, those that meet the goals, and of each goal by its kind how many miss it."""
    found: dict[str, float | int] = {"rows": len(rows), "rows that meet all goals": sum(not row.missed for row in rows)}
    for name, text in (
        ("dispatches", "dispatches"), ("spills", "spills"), ("matrix instructions", "no matrix"), ("code", "no code"),
    ):  # fmt: skip
        found[f"rows that miss the goal for {name}"] = sum(
            any(text in each and "per matrix" not in each for each in row.missed) for row in rows
        )
    for kind, limit in _MOST_OTHERS.items():
        mine = [row for row in rows if row.kind == kind]
        misses = sum(any("per matrix" in each for each in row.missed) for row in mine)
        found[f"{kind}: rows with more than {limit:g} others per matrix instruction, 16 bits"] = misses
    found[f"rows estimated at more than {_FAR:g} times their bound"] = sum((row.far or 0) > _FAR for row in rows)
    return found


def cells(row: GfxRow) -> tuple[str, ...]:
    """What a table says of a row, under `COLUMNS`."""
    registers = "-" if row.vgprs is None else f"{row.vgprs}/{row.agprs}/{row.sgprs}"
    groups = "-" if row.workgroups is None else f"{row.workgroups}/{row.units or '?'}"
    return (
        row.name, row.form, _number(row.dispatches), str(row.spills), _number(sum((row.matrix or {}).values())),
        _number(row.others_per_matrix), registers, _number(row.lds), _number(row.waves), groups, _number(row.bound_us),
        _number(row.far),
    )  # fmt: skip


COLUMNS: Final = (
    "row", "form", "dispatches", "spills", "matrix", "others", "registers", "LDS", "waves", "groups/units", "bound us",
    "times",
)  # fmt: skip


def gfx_markdown(rows: Sequence[GfxRow], about: Mapping[str, str]) -> str:
    """A table for each target, what it comes to, and the rows that miss goals or are far from their bound."""
    lines = [", ".join(f"{name}: {text}" for name, text in about.items()), ""]
    for target in dict.fromkeys(row.target for row in rows):
        mine = [row for row in rows if row.target == target]
        lines += [f"## {target}", "", *(f"* {name}: {value}" for name, value in gfx_summary(mine).items()), ""]
        lines += [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
        lines += [f"| {' | '.join(cells(row))} |" for row in mine]
        lines += ["", "Goals that are missed:", ""]
        lines += [
            f"* {row.name}: {'; '.join(row.missed)}{': ' * bool(row.problem)}{row.problem}"
            for row in mine
            if row.missed
        ]
        lines += ["", f"More than {_FAR:g} times the bound, by the figures of the code:", ""]
        lines += [f"* {row.name}: {row.far:.1f}: {', '.join(row.causes)}" for row in _far(mine)]
        lines.append("")
    return "\n".join(lines)


def _far(rows: Sequence[GfxRow]) -> list[GfxRow]:
    return sorted((row for row in rows if (row.far or 0) > _FAR), key=lambda row: -(row.far or 0))


@dataclass(frozen=True)
class Roof:
    """A roofline picture, in a square of 100 by 100: both axes are logarithms.

    Attributes:
        lines: of the roof: memory, then matrix instructions in f16: (x, y) of their ends.
        points: a name, x, y and whether goals are met, for each row.
        label: what the roof is of.
    """

    lines: tuple[tuple[float, float, float, float], ...]
    points: tuple[tuple[str, float, float, bool], ...]
    label: str


_INTENSITY: Final = (1e-2, 1e4)
"""Operations for a byte: the left and the right end."""
_DECADES: Final = 7
"""Below the peak."""


def roof(rows: Sequence[GfxRow], target: Target) -> Roof | None:
    """Where rows lie under the roof by their estimates; None: the chip is not known."""
    chip = chip_of(target)
    peak = None if chip is None else chip.matrix_peak(DataType.HALF)
    if chip is None or peak is None:
        return None

    def x(intensity: float) -> float:
        low, high = map(math.log10, _INTENSITY)
        return 100 * (min(max(math.log10(intensity), low), high) - low) / (high - low)

    def y(operations: float) -> float:
        return 100 * min(max((math.log10(peak) - math.log10(operations)) / _DECADES, 0.0), 1.0)

    ridge = peak / chip.bandwidth
    left = _INTENSITY[0]
    lines = (
        (x(left), y(left * chip.bandwidth), x(ridge), y(peak)),
        (x(ridge), y(peak), 100.0, y(peak)),
    )
    points = tuple(
        (row.name, x(row.flops / row.bytes), y(1e6 * row.flops / row.estimate_us), not row.missed)
        for row in rows
        if row.flops and row.bytes and row.estimate_us
    )
    return Roof(lines, points, _label(chip, peak))


def _label(chip: Chip, peak: float) -> str:
    return f"{chip.name}: {peak / 1e12:.0f} TFLOP/s in f16, {chip.bandwidth / 1e12:.1f} TB/s"


def gfx_html(rows: Sequence[GfxRow], about: Mapping[str, str]) -> str:
    """A page of its own, with a roofline for each target."""
    from fusilli_plugin.bench.page import template

    tables = []
    for target in dict.fromkeys(row.target for row in rows):
        mine = [row for row in rows if row.target == target]
        tables.append(
            (target, gfx_summary(mine), roof(mine, Target.parse(target)), [(row, cells(row)) for row in mine])
        )
    return template("gfx.html").render(tables=tables, about=about, columns=COLUMNS)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
