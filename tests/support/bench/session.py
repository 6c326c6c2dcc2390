"""What ONNX Runtime's `session.run` costs with the provider, above its own CPU provider in the same process."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Mapping
from itertools import repeat
from typing import Any, Final

import numpy as np

from graph_api import FusilliError

__all__ = ["GOALS", "Sessions"]

GOALS: Final[Mapping[str, float]] = {"session.run of a one-node model, above the CPU provider": 15e-6}
"""Seconds of the calling thread."""

_BATCHES: Final = 100


class Sessions:
    """A 4x4 addition in two sessions: with the provider on the CPU, and with ONNX Runtime's CPU provider.

    Attributes:
        skipped: why nothing can be measured; empty if it can.
        alone: seconds of a run without the provider, when it was last measured.
    """

    def __init__(self, calls: int) -> None:
        """Makes the sessions.

        Args:
            calls: a batch has a tenth of it as runs; a sample is the median of 100 batches of each session, in turns.

        Raises:
            FusilliError: the provider does not take the node, or computes wrong results.
        """
        missing = [name for name in ("onnxruntime", "onnx", "torch_mlir") if importlib.util.find_spec(name) is None]
        self.skipped = f"{', '.join(missing)} is not installed" if missing else ""
        self.alone = 0.0
        self._calls = max(calls // 10, 1)
        rng = np.random.default_rng(0)
        self._feeds = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in "ab"}
        if not missing:
            self._make()

    def sample(self) -> dict[str, float]:
        """One round: seconds by the name of `GOALS`."""
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(_BATCHES):
            ours.append(self._batch(self._ours))
            theirs.append(self._batch(self._theirs))
        self.alone = statistics.median(theirs)
        return dict.fromkeys(GOALS, statistics.median(ours) - self.alone)

    def _make(self) -> None:
        import onnxruntime as ort
        from onnx import TensorProto, helper

        import fusilli_plugin

        a, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "aby")
        graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "add", [a, b], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data = model.SerializeToString()
        fusilli_plugin.register_ep(cpu=True)
        settings = ort.SessionOptions()
        settings.add_provider_for_devices(fusilli_plugin.ep_devices("cpu"), {"strict": "1"})
        self._ours: Any = ort.InferenceSession(data, settings)
        self._ours.disable_fallback()
        self._theirs: Any = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
        if fusilli_plugin.ep_report(self._ours).claimed != 1:
            raise FusilliError("the provider does not claim the addition")
        if not (self._ours.run(None, self._feeds)[0] == self._feeds["a"] + self._feeds["b"]).all():
            raise FusilliError("the provider's addition computes wrong results")

    def _batch(self, session: Any) -> float:
        run, feeds = session.run, self._feeds
        start = time.thread_time()
        for _ in repeat(None, self._calls):
            run(None, feeds)
        return (time.thread_time() - start) / self._calls
