"""``hipdnn-graph-to-executable``: one plan for equal graphs, second chances, errors by name."""

from __future__ import annotations

import pytest

from hipdnn_backend.offload.errors import PassError
from hipdnn_backend.offload.passes.graph_to_executable import NotCompiledError
from hipdnn_backend.offload.report import Progress
from hipdnn_backend.offload.session import OffloadOptions
from hipdnn_backend.onnx_op import carries_onnx
from hipdnn_backend.wire import CustomOpAttributes, WireGraph
from tests.support.fake_engine import CUSTOM, POINTWISE, FakeEngine
from tests.support.filecheck import check_ir
from tests.support.passes import run_text

V = "!torch.vtensor<[4,4],f32>"


def chain(*names: str) -> str:
    """Unary operations one behind the other, each named after itself and its position."""
    lines = []
    for number, name in enumerate(names):
        x = f"%{number - 1}" if number else "%x"
        operands = f"{x}, %int1, %none : {V}, !torch.int, !torch.none" if name == "cumsum" else f"{x} : {V}"
        lines.append(f'%{number} = torch.aten.{name} {operands} -> {V} loc("{name}{number}")')
    body = "\n".join(lines)
    return f"""
        func.func @main(%x: {V}) -> {V} {{
          %int1 = torch.constant.int 1
          %none = torch.constant.none
          {body}
          return %{len(names) - 1} : {V}
        }}"""


def operations(graph: WireGraph) -> int:
    """How many operations a custom graph's function has."""
    (node,) = graph.nodes
    assert isinstance(node.attributes, CustomOpAttributes)
    return node.attributes.data.decode().count("torch.aten.")


def test_equal_graphs_share_a_plan() -> None:
    engine = FakeEngine()
    _ir, session = run_text(chain("relu", "relu"), engines=[engine], options=OffloadOptions(fuse=False))
    assert list(session.graphs) == ["hipdnn_graph_0", "hipdnn_graph_1"]
    first, second = session.graphs.values()
    assert first.plan is second.plan
    assert (first.nodes, second.nodes) == (("relu0",), ("relu1",))
    assert len(engine.built) == 1
    assert [graph.equal_to for graph in session.report.graphs] == ["", "hipdnn_graph_0"]


def test_progress_is_told_after_each_graph() -> None:
    told: list[Progress] = []
    options = OffloadOptions(fuse=False, progress=told.append)
    run_text(chain("relu", "tanh", "relu"), engines=[FakeEngine()], options=options)
    assert [(each.done, each.total) for each in told] == [(1, 2), (2, 2)]
    assert {each.name for each in told} == {"relu0", "tanh1"}
    assert all(not each.error and str(each).startswith(f"compiled {each.done} of 2: ") for each in told)


def test_progress_says_what_does_not_compile() -> None:
    told: list[Progress] = []
    first = FakeEngine(name="FIRST", fail=lambda _graph: "out of registers\nat r7")
    run_text(chain("relu"), engines=[first, FakeEngine(name="SECOND")], options=OffloadOptions(progress=told.append))
    refused, compiled = told
    assert (refused.engine, compiled.engine) == ("FIRST", "SECOND")
    assert "out of registers" in refused.error
    assert str(refused).startswith("not compiled, 1 of 1: relu0, ")
    assert "out of registers" in str(refused)
    assert "r7" not in str(refused)
    assert str(compiled).startswith("compiled 1 of 1: relu0, ")


def test_what_one_engine_fails_to_compile_goes_to_the_next() -> None:
    first = FakeEngine(name="FIRST", fail=lambda _graph: "out of registers")
    second = FakeEngine(name="SECOND")
    _ir, session = run_text(chain("relu"), engines=[first, second])
    (graph,) = session.graphs.values()
    assert graph.engine is second
    assert "out of registers" in graph.declined["FIRST"].reason
    (note,) = session.report.splits
    assert (note.nodes, note.engine, note.action) == (("relu0",), "FIRST", "given to SECOND")


def test_what_does_not_compile_as_operations_is_sent_as_mlir() -> None:
    engine = FakeEngine(fail=lambda graph: "no" if isinstance(graph.nodes[0].attributes, POINTWISE) else "")
    _ir, session = run_text(chain("relu", "tanh"), engines=[engine])
    (graph,) = session.graphs.values()
    assert graph.custom
    assert session.report.splits[0].action == "sent as a custom operation"


def test_a_run_that_does_not_compile_is_split_until_it_does() -> None:
    engine = FakeEngine([CUSTOM], fail=lambda graph: "too large" if operations(graph) > 1 else "")
    ir, session = run_text(chain("cumsum", "relu", "tanh"), engines=[engine])
    assert [graph.nodes for graph in session.graphs.values()] == [("cumsum0",), ("relu1",), ("tanh2",)]
    assert [note.action for note in session.report.splits] == [
        "split into 1 and 2 operations",
        "split into 1 and 1 operations",
    ]
    check_ir(
        ir,
        """
        CHECK: [[A:%.*]] = memref.alloc
        CHECK: hipdnn.execute graph("hipdnn_graph_0") ins(%arg0 : memref<4x4xf32>) outs([[A]] :
        CHECK: [[B:%.*]] = memref.alloc
        CHECK: hipdnn.execute graph("hipdnn_graph_1") ins([[A]] : memref<4x4xf32>) outs([[B]] :
        CHECK: hipdnn.execute graph("hipdnn_graph_2") ins([[B]] : memref<4x4xf32>) outs(%arg1 :
        """,
    )


def test_what_nobody_compiles_is_named() -> None:
    first = FakeEngine([CUSTOM], name="FIRST", fail=lambda graph: "crashed" if b"cumsum" in text(graph) else "")
    second = FakeEngine([], name="SECOND")
    with pytest.raises(PassError, match=r"no engine compiles torch.aten.cumsum \(node cumsum1\): .*crashed") as caught:
        run_text(chain("relu", "cumsum"), engines=[first, second])
    cause = caught.value.__cause__
    assert isinstance(cause, NotCompiledError)
    (failure,) = cause.failures
    assert failure.nodes == ("cumsum1",)
    assert set(failure.declined) == {"FIRST", "SECOND"}
    assert [split.action for split in cause.splits] == ["split into 1 and 1 operations"]
    assert caught.value.reproducer is not None
    caught.value.reproducer.unlink()


class LastEngine(FakeEngine):
    """Takes ONNX nodes."""

    is_fallback = True

    def __init__(self) -> None:
        super().__init__([CUSTOM], name="LAST", accept=lambda graph: "" if carries_onnx(graph) else "no ONNX")


@pytest.mark.parametrize("last", [True, False])
def test_all_that_nobody_compiles_is_named_if_another_engine_may_take_it(tmp_path, last: bool) -> None:
    engine = FakeEngine([CUSTOM], fail=lambda graph: "crashed" if b"cumsum" in text(graph) else "")
    engines = [engine, LastEngine()] if last else [engine]
    with pytest.raises(PassError) as caught:
        run_text(chain("cumsum", "relu", "cumsum"), engines=engines, options=OffloadOptions(reproducers=tmp_path))
    cause = caught.value.__cause__
    assert isinstance(cause, NotCompiledError)
    assert [failure.nodes for failure in cause.failures] == [("cumsum0",), *([("cumsum2",)] if last else [])]
    assert {who for failure in cause.failures for who in failure.declined} == {"FAKE_ENGINE"}


def text(graph: WireGraph) -> bytes:
    attributes = graph.nodes[0].attributes
    return attributes.data if isinstance(attributes, CustomOpAttributes) else b""


def test_plans_are_closed_if_a_later_graph_fails(tmp_path) -> None:
    from tests.support.fake_engine import FakePlan

    plans: list[FakePlan] = []

    class Keeping(FakeEngine):
        def build(self, graph: bytes, config) -> FakePlan:
            plans.append(super().build(graph, config))
            return plans[-1]

    engine = Keeping(fail=lambda graph: "no" if b"cumsum" in text(graph) else "")
    with pytest.raises(PassError):
        run_text(chain("relu", "cumsum"), engines=[engine], options=OffloadOptions(reproducers=tmp_path))
    assert plans
    assert all(plan.closed for plan in plans)
