"""What models ask of the engine beyond hipDNN's contract: other devices, other targets, bound launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph
from graph_api import DataType, Graph, PointwiseMode
from hipdnn_backend.engine import BindablePlan, PortableEngine
from hipdnn_backend.errors import EngineError
from hipdnn_backend.wire import EngineConfig, encode_graph


def add() -> tuple[Graph, bytes]:
    g = Graph("add", io_data_type=DataType.FLOAT)
    a, b = (g.tensor(name, dim=(4, 16)) for name in "ab")
    g.pointwise(PointwiseMode.ADD, a, b).set_output(True)
    g.validate()
    return g, encode_graph(export_graph(g))


def config(engine: FusilliEngine) -> EngineConfig:
    return EngineConfig(engine_id=engine.id)


def test_it_moves_to_another_device() -> None:
    engine = FusilliEngine("hip", options=replace(FusilliEngine("cpu").options, claim="off"))
    portable: PortableEngine = engine
    moved = portable.for_device("cpu")
    assert isinstance(moved, FusilliEngine)
    assert str(moved.device) == "cpu"
    assert moved.support(add()[1])  # the caller has chosen it, whatever it claims elsewhere
    with pytest.raises(EngineError, match="abacus"):
        engine.for_device("abacus")


@pytest.mark.mlir
def test_it_compiles_for_targets_that_are_not_here() -> None:
    data = add()[1]
    engine = FusilliEngine("cpu").for_target("gfx942")
    assert str(engine.target) == "gfx942"
    assert engine.support(data)
    payload = engine.build(data, config(engine)).serialize()
    assert engine.restore(payload).serialize()
    with pytest.raises(EngineError, match="is for gfx942, this device is gfx90a"):
        engine.for_target("gfx90a").restore(payload)
    with pytest.raises(EngineError, match="gfx000"):
        engine.for_target("gfx000")


@pytest.mark.iree_cpu
def test_bound_launches() -> None:
    graph, data = add()
    engine = FusilliEngine("cpu")
    plan = engine.build(data, config(engine))
    assert isinstance(plan, BindablePlan)
    assert plan.dispatches == 1
    inputs = graph.random_inputs(0)
    (output,) = graph.arguments().outputs
    result = output.empty()
    pack = {tensor.uid: array.ctypes.data for tensor, array in {**inputs, output: result}.items()}
    call = plan.bind(pack)
    for factor in (1, 2):
        for array in inputs.values():
            array *= factor
        call()
        np.testing.assert_array_equal(result, sum(inputs.values()))
    with pytest.raises(EngineError, match="has no buffer for tensor"):
        plan.bind({})
    plan.close()
    with pytest.raises(EngineError, match="closed"):
        plan.bind(pack)
