"""Dumped graphs: saved, read, and refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusilli_plugin.checks.graph_dump import Dump, is_dump, load_dump, save_dump
from graph_api import DataType, Graph, GraphError, PointwiseMode


def made() -> Dump:
    """y = x + s in bfloat16, with x in columns and s without dims of its own."""
    g = Graph("add", io_data_type=DataType.BFLOAT16)
    x, s = g.tensor("x", dim=(2, 3), stride=(1, 2)), g.tensor("../s", dim=(1, 1))
    g.pointwise(PointwiseMode.ADD, x, s).set_output(True)
    g.validate()
    inputs = g.random_inputs(0)
    (output,) = g.arguments().outputs
    result = output.empty()
    result[...] = 3
    return Dump(g, "cpu", inputs, {output: result}, {"model": "m", "step": 3})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_dump(tmp_path / "dump", made())
    return tmp_path / "dump"


def test_what_is_saved_is_read(folder: Path) -> None:
    assert is_dump(folder)
    assert not is_dump(folder.parent)
    expected, found = made(), load_dump(folder)
    assert found.graph.canonical_json() == expected.graph.canonical_json()
    assert (found.device, found.about) == ("cpu", {"model": "m", "step": 3})
    for (tensor, array), other in zip(found.inputs.items(), expected.inputs.values(), strict=True):
        assert array.dtype == ml_dtypes.bfloat16
        assert array.strides == tuple(stride * 2 for stride in tensor.strides)
        np.testing.assert_array_equal(array.astype(np.float32), other.astype(np.float32))
    assert sorted(path.name for path in folder.iterdir()) == [
        "dump.json", "graph.json", "input_0.npy", "input_1.npy", "output_0.npy",
    ]  # fmt: skip


def test_a_folder_with_something_in_it_stays(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FileExistsError, match="is not empty; name a new folder"):
        save_dump(folder, made())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "dump.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_damaged_dumps(folder: Path) -> None:
    for changes, message in (
        ({"version": 2}, "no dump of version 1"),
        ({"tensors": {"input_0": 99}}, "damaged: KeyError"),
        ({"tensors": {"../../etc/passwd": 0}}, "damaged|no name of an array"),
        ({"about": 3}, "damaged: TypeError"),
    ):
        save = (folder / "dump.json").read_text()
        _edit(folder, **changes)
        with pytest.raises(GraphError, match=message):
            load_dump(folder)
        (folder / "dump.json").write_text(save)
    np.save(folder / "input_0.npy", np.zeros((9, 9), np.float32))
    with pytest.raises(GraphError, match=r"\(9, 9\) float32 is not 'x'"):
        load_dump(folder)
    np.save(folder / "input_0.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(GraphError, match="damaged: ValueError: Array can't be memory-mapped: Python objects in dtype"):
        load_dump(folder)
    (folder / "dump.json").write_text("[]")
    with pytest.raises(GraphError, match="damaged"):
        load_dump(folder)
