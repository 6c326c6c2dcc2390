"""``fusilli inspect``: what the compiler made of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fusilli_plugin.cli.base import (
    command,
    echo,
    graph_argument,
    json_option,
    print_json,
    print_table,
    progress,
    targets_option,
)
from fusilli_plugin.formats.graphs import load_graph
from iree_bridge import Options, Target, support
from iree_bridge.compile import reproducer
from iree_bridge.compile.assembly import Dispatch
from iree_bridge.compile.compiler import compile_assembly, given
from iree_bridge.compile.inspect import Inspection, inspect_graph
from iree_bridge.compile.reproducer import Reproducer
from iree_bridge.static.figures import Figures
from iree_bridge.static.figures import read as read_figures

__all__ = ["document", "facts", "inspect"]


@command("inspect")
@graph_argument
@targets_option(required=True, help_text="What to compile for; registers and instructions are read for AMD targets.")
@click.option("--kernels", is_flag=True, help="Also one line per kernel.")
@click.option(
    "--files", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Also write, in a folder per target, the Torch-MLIR, the flags, the command line of iree-compile that does "
    "the same, and for AMD targets the assembly.",
)  # fmt: skip
@json_option
def inspect(graph_file: Path, targets: tuple[str, ...], kernels: bool, folder: Path | None, as_json: bool) -> None:
    r"""Report what the compiler made of a graph.

    No device is needed. Dispatches, matrix instructions, vector registers (VGPRs), spilled registers, LDS bytes per
    workgroup and scratch bytes per work item are read from the assembly and its metadata, the worst kernel counting.
    A second table has the kernel that does most: other instructions for each matrix instruction of its main loop,
    workgroups, waves that a SIMD holds, the roofline bound, how many times that an estimate by these figures is, and
    why. The estimate says where to look; it is no prediction.

    \b
    Examples:
      fusilli inspect graph.json --target gfx942
      fusilli inspect graph.json --target gfx90a,gfx942,gfx950 --json
      fusilli inspect graph.json --target gfx942 --files made
    """
    graph = load_graph(graph_file)
    chosen = [Target.parse(target) for target in targets]
    options = Options.from_env()
    folders = {} if folder is None else _new_folders(folder, chosen)
    found: list[Inspection] = []
    read: dict[int, Figures] = {}
    with progress() as step:
        for number, target in enumerate(chosen, start=1):
            step.say(f"[{number}/{len(chosen)}] compiling '{graph.name}' for {target}")
            support(graph, target).require()
            assembly = ""
            if target.backend == "rocm":
                code, assembly = compile_assembly(graph, target, options)
                read[len(found)] = read_figures(graph, code, assembly)
                found.append(read[len(found)].inspection)
            else:
                found.append(inspect_graph(graph, target, options))
            if folders:
                step.say(f"[{number}/{len(chosen)}] writing {folders[target]}")
                _write_files(folders[target], given(graph, target, options, form=found[-1].form), assembly)
    if as_json:
        print_json([document(each) | _costs(read.get(number)) for number, each in enumerate(found)])
        return
    print_table(*facts(found))
    if read:
        columns = ("target", "form", "others per matrix", "workgroups", "waves", "bound us", "times", "causes")
        print_table(columns, [_cost_cells(each) for each in read.values()])
    if kernels:
        columns = ("target", "kernel", "VGPRs", "AGPRs", "SGPRs", "spills", "LDS", "scratch", "workgroup", "wave")
        print_table(columns, [_kernel_cells(inspection, k) for inspection in found for k in inspection.kernels])
    echo(*(f"{made}: {', '.join(sorted(path.name for path in made.iterdir()))}" for made in folders.values()))


def _new_folders(folder: Path, targets: Sequence[Target]) -> dict[Target, Path]:
    """A folder for each target that is not there yet: nothing is written over.

    Raises:
        click.BadParameter: one is there.
    """
    made = {target: folder / str(target).replace(":", "-") for target in targets}
    for path in made.values():
        if path.exists():
            raise click.BadParameter(f"{path} is there already; name another folder", param_hint="--files")
    return made


def _write_files(folder: Path, files: Reproducer, assembly: str) -> None:
    folder.mkdir(parents=True, mode=0o700)
    reproducer.write(folder, files, **({"kernels.s": assembly} if assembly else {}))


def _costs(found: Figures | None) -> dict[str, Any]:
    """What a graph's code takes on a chip, as JSON; units are seconds and bytes."""
    if found is None:
        return {}
    main = found.main
    return {
        "form": found.form,
        "chip": found.chip and found.chip.name,
        "others_per_matrix": found.others_per_matrix,
        "workgroups": main and main.workgroups,
        "waves": main and main.waves,
        "flops": found.flops,
        "bytes": found.bytes_least,
        "bound_s": found.bound,
        "estimate_s": found.estimate,
        "causes": found.causes(),
    }


def _cost_cells(found: Figures) -> tuple[object, ...]:
    main, bound = found.main, found.bound
    return (
        str(found.target),
        found.form,
        "-" if found.others_per_matrix is None else f"{found.others_per_matrix:.1f}",
        "-" if main is None else f"{main.workgroups} for {'?' if found.chip is None else found.chip.units} units",
        "-" if main is None or main.waves is None else main.waves,
        "-" if bound is None else f"{1e6 * bound:.3g}",
        "-" if found.far is None else f"{found.far:.2g}",
        ", ".join(found.causes()) or "-",
    )


def _kernel_cells(inspection: Inspection, kernel: Dispatch) -> tuple[object, ...]:
    registers = (kernel.vgprs, kernel.agprs, kernel.sgprs, kernel.vgpr_spills + kernel.sgpr_spills)
    memory = (kernel.lds, kernel.scratch, kernel.workgroup, kernel.wavefront)
    return (str(inspection.target), kernel.name, *registers, *memory)


def facts(found: Sequence[Inspection]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Column names, and a line of cells per inspection; "-" where the target does not tell."""
    columns = ("target", "dispatches", "matrix instructions", "VGPRs", "spills", "LDS", "scratch")
    return columns, [_cells(inspection) for inspection in found]


def _cells(inspection: Inspection) -> tuple[object, ...]:
    kernels = inspection.kernels
    dispatches = "-" if inspection.dispatches is None else inspection.dispatches
    if not kernels:
        return (str(inspection.target), dispatches, "-", "-", "-", "-", "-")
    matrix = ", ".join(f"{count} {mnemonic}" for mnemonic, count in inspection.matrix.items()) or "none"
    return (
        str(inspection.target),
        dispatches,
        matrix,
        max(kernel.vgprs for kernel in kernels),
        inspection.spills,
        max(kernel.lds for kernel in kernels),
        max(kernel.scratch for kernel in kernels),
    )


def document(inspection: Inspection) -> dict[str, Any]:
    """The facts as JSON."""
    return {
        "target": str(inspection.target),
        "dispatches": inspection.dispatches,
        "matrix": inspection.matrix,
        "spills": inspection.spills,
        "kernels": [asdict(kernel) for kernel in inspection.kernels],
    }
