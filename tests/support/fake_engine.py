"""An engine that compiles nothing: it takes the operations that it was told to and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hipdnn_backend.engine import EngineId, Override, Support, engine_id
from hipdnn_backend.errors import EngineError
from hipdnn_backend.wire import (
    ConvolutionFwdAttributes,
    CustomOpAttributes,
    EngineConfig,
    EngineDetails,
    PointwiseAttributes,
    WireGraph,
    decode_graph,
)

__all__ = ["CONV", "CUSTOM", "POINTWISE", "FakeEngine", "FakePlan"]

CONV = ConvolutionFwdAttributes
CUSTOM = CustomOpAttributes
POINTWISE = PointwiseAttributes


class FakePlan:
    """Does nothing."""

    def __init__(self, graph: WireGraph) -> None:
        self.graph = graph
        self.closed = False

    @property
    def workspace_size(self) -> int:
        return 16

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        raise EngineError("FakePlan.execute", "a fake plan does not run")

    def serialize(self) -> bytes:
        return self.graph.name.encode()

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Satisfies `hipdnn_backend.engine.Engine`.

    Attributes:
        built: the graphs that it compiled, in order.
        asked: how often it was asked.
    """

    def __init__(
        self,
        takes: Iterable[type] | None = None,
        *,
        name: str = "FAKE_ENGINE",
        accept: Callable[[WireGraph], str] = lambda _graph: "",
        fail: Callable[[WireGraph], str] = lambda _graph: "",
    ) -> None:
        """Makes an engine.

        Args:
            takes: classes of operations that it takes; None: every one.
            name: of the engine.
            accept: why it does not take a graph of such operations, "" if it does.
            fail: why compiling a graph fails, "" if it does not.
        """
        self._takes = None if takes is None else tuple(takes)
        self._name = name
        self._accept = accept
        self._fail = fail
        self.built: list[WireGraph] = []
        self.asked = 0

    @property
    def id(self) -> EngineId:
        return engine_id(self._name)

    @property
    def name(self) -> str:
        return self._name

    def support(self, graph: bytes) -> Support:
        self.asked += 1
        decoded = decode_graph(graph)
        for node in decoded.nodes:
            if self._takes is not None and not isinstance(node.attributes, self._takes):
                return Support.no(f"no {type(node.attributes).__name__}", node=node.name, rule="operation")
        reason = self._accept(decoded)
        return Support.no(reason, rule="accept") if reason else Support.yes()

    def details(self, graph: bytes) -> EngineDetails:
        return EngineDetails(engine_id=self.id, name=self._name)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        return 16

    def build(self, graph: bytes, config: EngineConfig) -> FakePlan:
        assert config.engine_id == self.id
        decoded = decode_graph(graph)
        reason = self._fail(decoded)
        if reason:
            raise EngineError(f"{self._name}.build", reason)
        self.built.append(decoded)
        return FakePlan(decoded)

    def restore(self, payload: bytes) -> FakePlan:
        raise EngineError(f"{self._name}.restore", "a fake engine restores nothing")
