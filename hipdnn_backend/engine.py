"""What an engine is to this package: a protocol, so that engines of any origin are used alike.

Graphs travel as bytes in hipDNN's wire format and buffers as addresses, as they do through the C plugin API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol, runtime_checkable

from fusilli_ground.support import Support
from hipdnn_backend.wire import EngineConfig, EngineDetails

__all__ = [
    "KNOWN_ENGINES",
    "BindablePlan",
    "Engine",
    "EngineId",
    "FallbackEngine",
    "FilterOrder",
    "LayoutEngine",
    "Override",
    "Plan",
    "Support",
    "engine_id",
    "engine_name",
    "is_fallback",
]

EngineId = NewType("EngineId", int)
"""Signed 64-bit number of an engine: the hash of its name."""


class Override(NamedTuple):
    """Other dims for a tensor in one execution of a plan whose graph allows it.

    Attributes:
        dims: logical order, as many as the tensor has.
        strides: in elements.
    """

    dims: Sequence[int]
    strides: Sequence[int]


class Plan(Protocol):
    """A graph compiled by an engine."""

    @property
    def workspace_size(self) -> int:
        """Bytes of device memory that `execute` needs."""
        ...

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        """Enqueue one execution and return.

        Args:
            pack: tensor uid → address of its buffer: device memory, host memory for runtime scalars. The caller owns
                the buffers, which stay valid until the stream has passed the execution. Unknown uids are ignored.
            workspace: address of device memory of at least `workspace_size` bytes, 0 if that is 0.
            stream: address of the HIP stream, 0 for the default stream.
            overrides: tensor uid → its dims this time.

        Raises:
            EngineError: a uid or the workspace is missing, or the device failed.
        """
        ...

    def serialize(self) -> bytes:
        """The plan as bytes from which the same engine can restore it.

        Raises:
            EngineError: the engine cannot.
        """
        ...

    def close(self) -> None:
        """Free the plan; it is not usable afterwards. A second call does nothing."""
        ...


@runtime_checkable
class BindablePlan(Plan, Protocol):
    """A plan that can be prepared for executions on the same addresses. Optional: `Plan.execute` is enough."""

    def bind(self, pack: Mapping[int, int], *, workspace: int = 0, stream: int = 0) -> Callable[[], None]:
        """What enqueues one execution and returns, as `Plan.execute` does, with all checks done now.

        It refers to no more than the addresses; the buffers are the caller's, and stay valid as long as it is called.

        Args:
            pack: as for `Plan.execute`.
            workspace: as for `Plan.execute`.
            stream: as for `Plan.execute`.

        Raises:
            EngineError: a uid or the workspace is missing, or the device does not load the code. The call raises it
                too if the device fails.
        """
        ...


class Engine(Protocol):
    """Compiles and runs operation graphs. Methods may be called from any thread."""

    @property
    def id(self) -> EngineId:
        """The hash of the name, see `engine_id`."""
        ...

    @property
    def name(self) -> str:
        """E.g. ``FUSILLI_ENGINE``."""
        ...

    def support(self, graph: bytes) -> Support:
        """Whether the engine runs the graph. Cheap: it is asked often, and damaged bytes are declined, not raised."""
        ...

    def details(self, graph: bytes) -> EngineDetails:
        """Knobs and behaviour notes for the graph.

        Raises:
            EngineError: the engine does not run the graph.
        """
        ...

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        """Upper bound in bytes for a plan of that configuration.

        Raises:
            EngineError: the engine does not run the graph, or not so.
        """
        ...

    def build(self, graph: bytes, config: EngineConfig) -> Plan:
        """Compile. Nothing of ``graph`` is referred to afterwards.

        Raises:
            EngineError: the engine does not run the graph, or compiling failed.
        """
        ...

    def restore(self, payload: bytes) -> Plan:
        """A plan from what `Plan.serialize` gave.

        Raises:
            EngineError: the bytes are damaged, of another engine, target or version.
        """
        ...


class PortableEngine(Engine, Protocol):
    """An engine that compiles for other devices and targets than its own. Optional."""

    @property
    def target(self) -> object:
        """What it compiles for; its ``str`` is the name that `for_target` takes."""
        ...

    def for_device(self, device: str) -> Engine:
        """The engine for another device, e.g. ``cpu``, ``hip:1``.

        Raises:
            EngineError: the name means nothing.
        """
        ...

    def for_target(self, target: str) -> Engine:
        """An engine that compiles for a target that need not be in this machine, e.g. ``gfx942``; it runs nothing.

        Raises:
            EngineError: the name means nothing.
        """
        ...


class FilterOrder(StrEnum):
    """How the filters [K, C, window...] of a convolution lie in memory.

    CHANNELS_LAST: K, window, C.
    BY_TAPS: window, C, K.
    """

    CHANNELS_LAST = "channels-last"
    BY_TAPS = "by-taps"


@runtime_checkable
class LayoutEngine(Engine, Protocol):
    """An engine that says in which order it reads images and filters fastest. Optional."""

    @property
    def prefers_channels_last(self) -> bool:
        """Whether convolutions are faster between images with channels last."""
        ...

    def filter_order(self, filters: Sequence[int], result: Sequence[int]) -> FilterOrder | None:
        """In which order filters of these dims are best for a channels-last result of these dims; None: row-major."""
        ...


class FallbackEngine(Engine, Protocol):
    """An engine that runs what no other takes of a model, as ONNX nodes; see `hipdnn_backend.onnx_op`. Optional."""

    @property
    def is_fallback(self) -> bool:
        """True: it comes after all others, and models that need it are offloaded instead of refused."""
        ...


def is_fallback(engine: Engine) -> bool:
    """Whether an engine is a `FallbackEngine`."""
    return getattr(engine, "is_fallback", False) is True


def engine_id(name: str) -> EngineId:
    """The id that hipDNN gives an engine of that name: signed 64-bit FNV-1a of its UTF-8 bytes, 0 for ""."""
    if not name:
        return EngineId(0)
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return EngineId(value - 2**64 if value >= 2**63 else value)


KNOWN_ENGINES: dict[int, str] = {
    engine_id(name): name
    for name in (
        "FUSILLI_ENGINE",
        "MIOPEN_ENGINE",
        "MIOPEN_ENGINE_DETERMINISTIC",
        "HIPBLASLT_ENGINE",
        "HIP_MLOPS_ENGINE",
        "ASM_SDPA_ENGINE",
        "ROCKE_ENGINE",
    )
}
"""Id → name of engines that hipDNN knows or knew by itself."""


def engine_name(id_: int) -> str:
    """The name of an engine that does not say it: a known one, or the id as hipDNN prints it."""
    return KNOWN_ENGINES.get(id_) or f"0x{id_ % 2**64:016X}"
