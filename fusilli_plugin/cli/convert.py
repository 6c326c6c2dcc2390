"""``fusilli convert``: a graph from any form that is read into one of hipDNN's, or ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from fusilli_ground.files import write_whole
from fusilli_plugin.cli.base import command, echo_text, graph_argument, require_outputs
from fusilli_plugin.formats.graphs import load_graph, load_wire_graph
from hipdnn_backend.wire import decode_graph
from hipdnn_backend.wire.json import graph_to_json

__all__ = ["convert"]


def _hipdnn_json(path: Path) -> bytes:
    return graph_to_json(decode_graph(load_wire_graph(path)), indent=1).encode() + b"\n"


_FORMS: Final[dict[str, Callable[[Path], bytes]]] = {
    "hipdnn": _hipdnn_json,
    "hipdnn-binary": load_wire_graph,
    "fusilli": lambda path: load_graph(path).to_json().encode(),
}


@command("convert")
@graph_argument
@click.argument("output", metavar="OUTPUT", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--to", "form", type=click.Choice(list(_FORMS)), default="hipdnn", show_default=True,
    help="hipDNN's JSON, hipDNN's FlatBuffers, or the JSON of Graph.to_json.",
)  # fmt: skip
def convert(graph_file: Path, output: Path, form: str) -> None:
    r"""Write a graph in another form.

    Read are our JSON, hipDNN's JSON and FlatBuffers, cuDNN's JSON and UBJSON, and graphs that `fusilli compile` saved.
    OUTPUT may be - for standard output. What hipDNN has no word for is refused.

    \b
    Examples:
      fusilli convert cudnn_graph.json graph.json
      fusilli convert graph.json graph.bin --to hipdnn-binary
    """
    to_file = str(output) != "-"
    if to_file:
        require_outputs(output, source=graph_file)
    data = _FORMS[form](graph_file)
    if to_file:
        write_whole(output, data)
    elif form == "hipdnn-binary":
        sys.stdout.buffer.write(data)
    else:
        echo_text(data.decode().rstrip("\n"))
