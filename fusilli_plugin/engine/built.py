"""A compiled graph, loaded where it is used: what the plans of one graph share."""

from __future__ import annotations

import shlex
import threading
import weakref
from dataclasses import dataclass, field
from typing import Final

from fusilli_ground.locks import fork_safe_lock
from fusilli_plugin.engine import quarantine
from fusilli_plugin.engine.knobs import Settings
from fusilli_plugin.engine.plan_frame import seal
from fusilli_plugin.errors import BadParamError
from graph_api import Graph
from iree_bridge import Device, Executable, Options, Target
from iree_bridge.api import load_code
from iree_bridge.compile import versions
from iree_bridge.compile.compiler import CompiledCode
from iree_bridge.targets.cpu import host_arch

__all__ = ["Built", "Place"]

# So little is kept for each execution at a time, instead of asked for: some programs pass no workspace.
_SMALL_SCRATCH: Final = 32 << 10  # bytes
_LARGEST_OWN: Final = 1 << 20  # bytes; AMD's samples pass no workspace, and their gradients of batchnorm need 256 KiB

Place = tuple[int, int | None]
"""Number of the device and stream; the CPU has no streams."""


@dataclass
class Built:
    """A compiled graph, shared by the plans that want the same.

    Attributes:
        graph: what was compiled.
        target: what for.
        code: the compiled code.
        settings: with which knobs.
        scratch_size: bytes of workspace that the code takes.
        optional: uids of results that nothing in the graph reads and nobody has marked as outputs.
        is_variant: True if it was made for other dims, or other results, than those that the host was told of.
        is_unproven: True if no code serves on this device before it was checked there.
    """

    graph: Graph
    target: Target
    code: CompiledCode
    settings: Settings
    scratch_size: int
    options: Options
    optional: frozenset[int] = frozenset()
    is_variant: bool = False
    is_unproven: bool = False
    _lock: threading.Lock = field(default_factory=fork_safe_lock)
    _loaded: weakref.WeakValueDictionary[Device, Executable] = field(default_factory=weakref.WeakValueDictionary)

    @property
    def keeps_scratch(self) -> bool:
        """Whether plans have memory of their own for the workspace, which then is no concern of the host's."""
        return self.scratch_size <= _SMALL_SCRATCH

    @property
    def workspace_size(self) -> int:
        """Bytes that the host has to give."""
        return 0 if self.keeps_scratch else self.scratch_size

    @property
    def needs_workspace(self) -> bool:
        """Whether it fails without the host's workspace: where little is needed, it takes memory of its own instead.

        A plan for overridden dims always does: it may need more than the host was told.
        """
        return self.scratch_size > _LARGEST_OWN and not self.is_variant

    def executable(self, device: Device) -> Executable:
        """The code on a device and stream; one object as long as a plan uses it.

        Raises:
            BadParamError: the device is of another kind than the one that the code is for.
            ExecutionError: the device is not there, or does not load the code.
            QuarantinedError: the code computes wrong results there.
            NotSupportedError: it has to be checked there, and cannot be.
        """
        with self._lock:
            executable = self._loaded.get(device)
            if executable is None:
                if device.target != self.target:
                    raise BadParamError(
                        f"the plan of graph '{self.graph.name}' is for {self.target}, {device} is {device.target}"
                    )
                executable, self.code = load_code(self.graph, self.code, device, self.options)
                if self.options.verify_first or self.is_unproven:
                    quarantine.verify(self.graph, self.code, executable, self.options, is_needed=self.is_unproven)
                self._loaded[device] = executable
            return executable

    def to_bytes(self) -> bytes:
        """A sealed artifact of one target, without what only a recompile needs."""
        from iree_bridge.artifact.artifact import Artifact, TargetCode

        code = TargetCode(
            target=self.target,
            vmfb=self.code.vmfb,
            ir="",
            flags=self.code.flags,
            global_flags=(),
            iree=versions.iree_version(),
            machine="" if self.target.is_gpu else host_arch(),
            cpu_features=self.target.needs(self.code.flags),
            key=self.code.key,
            dispatches=self.code.dispatches,
            seconds=self.code.seconds,
        )
        made_by = {"plan": "1", "emitter": versions.emitter_version(), "knobs": shlex.join(self.settings.flags)}
        made_by |= {"optional": " ".join(map(str, sorted(self.optional)))} if self.optional else {}
        return seal(Artifact(self.graph, {str(self.target): code}, None, "a plan has none", made_by).to_bytes())
