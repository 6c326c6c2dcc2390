"""Figures of a graph's code for an AMD chip: what each kernel takes and does, and how far that is from the roofline.

The roofline bound is what no code can be faster than: all operations at the peak of the chip, or all bytes of the
arguments, once, at the bandwidth of its memory. The estimate adds what the code shows: compute units without a
workgroup, instructions that are no matrix instructions, bytes that go through memory between kernels, further kernels.
It orders forms of a graph and says where to look; it is no prediction. Caches, waits for memory and for barriers,
conflicts of banks are in no figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from graph_api import CompileError, DataType, Graph
from iree_bridge.compile.assembly import Dispatch, parse_assembly
from iree_bridge.compile.compiler import CompiledCode, compile_assembly
from iree_bridge.compile.inspect import Inspection
from iree_bridge.compile.options import Options
from iree_bridge.runtime.program import load_module, workspace_size
from iree_bridge.runtime.recorded.recording import Launch, UnrecordableError, record
from iree_bridge.static.chips import SIMDS, Chip, chip_of
from iree_bridge.targets.target import Target

__all__ = ["Figures", "KernelFigures", "figures", "read"]

_LAUNCH: Final = 2.5e-6
"""Seconds that a further kernel costs: a quarter of what four launches take (see ``targets/variants.py``)."""
_ISSUE: Final = 4
"""Cycles in which a SIMD issues an instruction of a wave."""
_SIZES: Final = re.compile(r"_(\d+)x(\d+)x(\d+)_?(?:(\d+)b_)?(bf16|f16|i8|f32)(?:_1k)?$")


@dataclass(frozen=True)
class KernelFigures:
    """One launch.

    Attributes:
        kernel: what is read from its assembly.
        workgroups: of its grid.
        waves: that a SIMD holds at a time; None: the chip is not known.
    """

    kernel: Dispatch
    workgroups: int
    waves: int | None


@dataclass(frozen=True)
class Figures:
    """Of a graph's code for a target.

    Attributes:
        target: what it was compiled for.
        form: in which form.
        chip: whose numbers were taken; None: not known.
        inspection: what is read from the code alone.
        launches: kernels that run, in order; empty if the host program is not understood.
        flops: operations of the graph.
        bytes_least: of its arguments: all are read or written once.
        bytes_moved: and of what goes through memory between kernels, written and read.
        bound: seconds, by the roofline; None: the chip is not known, or has no peak for the types.
        is_compute_bound: what the bound is of: operations, else bytes.
        computing, moving: seconds that the operations, and the bytes, take by the figures of the code; None where there
            is no bound or no launch is known.
    """

    target: Target
    form: str
    chip: Chip | None
    inspection: Inspection
    launches: tuple[KernelFigures, ...]
    flops: int
    bytes_least: int
    bytes_moved: int
    bound: float | None
    is_compute_bound: bool
    computing: float | None = None
    moving: float | None = None

    @property
    def main(self) -> KernelFigures | None:
        """The launch with most matrix instructions in its code, else with most instructions in all work items."""
        return max(
            self.launches,
            key=lambda it: (
                sum(it.kernel.matrix.values()),
                it.workgroups * it.kernel.workgroup * it.kernel.instructions,
            ),
            default=None,
        )

    @property
    def dispatches(self) -> int | None:
        """Kernels of a run, or as many as the compiler says."""
        return len(self.launches) or self.inspection.dispatches

    @property
    def spills(self) -> int:
        """Registers, vector and scalar, that did not fit, and bytes of private memory, over all kernels."""
        return sum(k.vgpr_spills + k.sgpr_spills + k.scratch for k in self.inspection.kernels)

    @property
    def others_per_matrix(self) -> float | None:
        """Of the main launch: see `Dispatch`."""
        return None if self.main is None else self.main.kernel.others_per_matrix

    @property
    def estimate(self) -> float | None:
        """Seconds, by the figures of the code: what takes longer, and further launches."""
        if self.computing is None or self.moving is None:
            return None
        return max(self.computing, self.moving) + _LAUNCH * (len(self.launches) - 1)

    @property
    def far(self) -> float | None:
        """Times the bound that the estimate is."""
        return None if self.bound is None or self.estimate is None or not self.bound else self.estimate / self.bound

    def causes(self) -> list[str]:
        """What keeps the estimate from the bound, in words."""
        main, found = self.main, list[str]()
        if main is None:
            return ["the host program is not understood"]
        kernel, others = main.kernel, main.kernel.others_per_matrix
        computes = self.computing is not None and self.moving is not None and self.computing > self.moving
        if computes and not kernel.matrix:
            found.append("no matrix instructions")
        if self.spills:
            found.append("registers in memory")
        if self.chip is not None and main.workgroups < self.chip.units:
            found.append(f"{main.workgroups} workgroups for {self.chip.units} compute units")
        elif self.chip is not None and _busy(main.workgroups, self.chip) < _TAIL:
            found.append(f"a last round of workgroups for a part of {self.chip.units} compute units")
        if others is not None and computes and _matrix_share(kernel, main.waves, self.chip) < _HIDDEN:
            found.append(f"{others:.1f} other instructions for each matrix instruction")
            halves = sum(count for name, count in kernel.loop.items() if name.startswith("ds_read_u"))
            if halves:
                found.append(f"{halves} reads of single elements from local memory in the loop")
        if main.waves == 1 and others is not None and computes:
            found.append("one wave for each SIMD")
        if self.bytes_moved > 1.2 * self.bytes_least:
            found.append(f"{_size(self.bytes_moved - self.bytes_least)} through memory between kernels")
        if len(self.launches) > 1:
            found.append(f"{len(self.launches)} kernels")
        return found


_TAIL: Final = 0.75
_HIDDEN: Final = 0.9


def figures(graph: Graph, target: Target, options: Options | None = None, *, form: str | None = None) -> Figures:
    """Compile a graph for an AMD target, anew, and read what its code takes. No device is needed.

    Args:
        graph: valid.
        target: of AMD.
        options: default: ``Options.from_env()``.
        form: the one to compile in; default: the first of the graph's that the compiler can do.

    Raises:
        GraphError, NotSupportedError, CompileError: as ``iree_bridge.compile.compiler.compile_code``; CompileError too
            for a target that is not AMD's.
    """
    if target.backend != "rocm":
        raise CompileError(f"target '{target}': figures are read from AMD assembly; name a gfx target")
    return read(graph, *compile_assembly(graph, target, options, form=form))


def read(graph: Graph, code: CompiledCode, assembly: str) -> Figures:
    """The figures of a graph's code, with the assembly of its kernels."""
    kernels, chip = parse_assembly(assembly), chip_of(code.target)
    workspace = workspace_size(load_module(code.vmfb))
    sizes = [tensor.nbytes for tensor in (*graph.arguments().outputs, *graph.arguments().inputs)]
    bound, by_operations = _bound(graph, sum(sizes), chip)
    made = Figures(
        target=code.target,
        form=code.form,
        chip=chip,
        inspection=Inspection(code.target, code.dispatches, tuple(kernels), code.form),
        launches=_launches(code.vmfb, sizes, workspace, kernels, chip),
        flops=graph.flops(),
        bytes_least=sum(sizes),
        bytes_moved=sum(sizes) + 2 * workspace,
        bound=bound,
        is_compute_bound=by_operations,
    )
    return made if bound is None or chip is None else _with_estimate(made, graph, chip)


def _launches(
    code: bytes, sizes: Sequence[int], workspace: int, kernels: Sequence[Dispatch], chip: Chip | None
) -> tuple[KernelFigures, ...]:
    by_name = {kernel.name: kernel for kernel in kernels}
    try:
        commands = record(code, sizes, workspace).commands
    except UnrecordableError:
        return ()
    found: list[KernelFigures] = []
    for command in commands:
        if not isinstance(command, Launch):
            continue
        kernel = by_name.get(command.kernel.name)
        if kernel is None:
            return ()
        threads = math.prod(command.kernel.block)
        waves = chip and chip.waves(kernel.vgprs, kernel.agprs, kernel.lds, threads, kernel.wavefront)
        found.append(KernelFigures(kernel, math.prod(command.grid), waves))
    return tuple(found)


def _bound(graph: Graph, least: int, chip: Chip | None) -> tuple[float | None, bool]:
    peak = None if chip is None else _peak(graph, chip)
    if chip is None or peak is None:
        return None, False
    by_memory, by_operations = least / chip.bandwidth, graph.flops() / peak
    return max(by_memory, by_operations), by_operations > by_memory


_PRODUCTS: Final = {"matmul", "conv_fprop", "conv_dgrad", "conv_wgrad", "sdpa"}


def _peak(graph: Graph, chip: Chip) -> float | None:
    """Operations a second: of matrix instructions for the type that most of the graph's work is in, else of vectors."""
    products = [node for node in graph.nodes if node.op in _PRODUCTS]
    if not products:
        return chip.vector_peak
    main = max(products, key=lambda node: node.flops())
    return chip.matrix_peak(next(iter(main.inputs.values())).data_type)


def _with_estimate(made: Figures, graph: Graph, chip: Chip) -> Figures:
    main = made.main
    if main is None:
        return made
    kernel, busy = main.kernel, _busy(main.workgroups, chip)
    peak = _peak(graph, chip) if kernel.matrix else chip.vector_peak
    assert peak is not None  # there is a bound
    share = _matrix_share(kernel, main.waves, chip) if kernel.matrix else 1.0
    return replace(
        made, computing=made.flops / (peak * share * busy), moving=made.bytes_moved / (chip.bandwidth * min(1.0, busy))
    )


def _busy(workgroups: int, chip: Chip) -> float:
    """The share of the compute units that have work, over the rounds in which workgroups come to them."""
    return workgroups / (-(-workgroups // chip.units) * chip.units)


def _matrix_share(kernel: Dispatch, waves: int | None, chip: Chip | None) -> float:
    """The share of the cycles of the main loop in which matrix instructions are computed.

    With several waves the other instructions of one are issued while matrix instructions of another are computed.
    """
    others, cycles = kernel.others_per_matrix, _cycles(kernel, chip)
    if others is None or cycles is None:
        return 1.0
    rest = _ISSUE * others
    return cycles / max(cycles, rest) if (waves or 1) > 1 else cycles / (cycles + rest)


_NAMES: Final = {"f16": DataType.HALF, "bf16": DataType.BFLOAT16, "i8": DataType.INT8, "f32": DataType.FLOAT}


def _cycles(kernel: Dispatch, chip: Chip | None) -> float | None:
    """Cycles of a SIMD that the commonest matrix instruction of the loop takes; None: its type is not in the table."""
    counts = {name: count for name, count in kernel.loop.items() if name in kernel.matrix}
    if not counts or chip is None:
        return None
    name = max(counts, key=lambda each: counts[each])
    found = _SIZES.search(name)
    if found is None:
        return None
    rows, columns, depth, blocks = (int(size or 1) for size in found.groups()[:4])
    return 2 * rows * columns * depth * blocks / (chip.generation.matrix[_NAMES[found[5]]] / SIMDS)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.3g} MiB"
