"""ONNX's backend interface over the offload pipeline, so that ONNX's own test suite can run it.

Example:
    from onnx.backend.test import BackendTest

    suite = BackendTest(FusilliBackend, __name__)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.offload import Model, load
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import control_inputs
from hipdnn_backend.offload.frontend.tensors import to_array

__all__ = ["FusilliBackend", "FusilliRep"]

Array = np.ndarray[Any, Any]


class FusilliRep(BackendRep):
    """A model that runs; what `FusilliBackend.prepare` returns.

    A model whose operators need to know an input (axes, a shape, a zero point) is compiled at the first run and again
    when such an input changes.
    """

    def __init__(self, model: onnx.ModelProto, device: str) -> None:
        """Args: the model, which is kept, and the device in our words, e.g. ``hip:1``."""
        self._proto = model
        self._device = device
        initialized = {tensor.name for tensor in model.graph.initializer}
        self._names = [value.name for value in model.graph.input if value.name not in initialized]
        self._control = control_inputs(model)
        self._bound: dict[str, Array] = {}
        self._model: Model | None = None
        if not self._control.intersection(self._names):
            self._model = self._load({})

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run once.

        Args:
            inputs: arrays or ``TensorProto`` in the order of the model's inputs, or by name.
            kwargs: none is known.

        Returns:
            The outputs in the model's order.

        Raises:
            ModelError, PassError: what is given is no tensor, or it cannot be compiled for these control inputs.
            InputError: an array is missing or does not fit.
        """
        if kwargs:
            raise TypeError(f"run takes no {', '.join(sorted(kwargs))}")
        feeds = self._feeds(inputs)
        model = self._compiled({name: feeds[name] for name in self._names if name in self._control and name in feeds})
        return tuple(model.run({each.name: feeds[each.name] for each in model.inputs if each.name in feeds}).values())

    def close(self) -> None:
        """Free the model's memory. A later run compiles again."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def _load(self, bound: dict[str, Array]) -> Model:
        """By our engine alone: what it cannot do is to be seen."""
        return load(
            self._proto, device=self._device, inputs=bound, engines=(FusilliEngine("cpu").for_device(self._device),)
        )

    def _feeds(self, inputs: Any) -> dict[str, Array]:
        if not isinstance(inputs, Mapping):
            given: Sequence[Any] = inputs if isinstance(inputs, list | tuple) else [inputs]
            if len(given) > len(self._names):
                raise ModelError("", "feeds", f"{len(given)} inputs are given, the model has {len(self._names)}")
            inputs = dict(zip(self._names, given, strict=False))
        return {name: _array(name, value) for name, value in inputs.items()}

    def _compiled(self, bound: dict[str, Array]) -> Model:
        if self._model is None or not _equal(bound, self._bound):
            self.close()
            self._model = self._load(bound)
            self._bound = {name: value.copy() for name, value in bound.items()}
        return self._model


class FusilliBackend(Backend):
    """Compiles a whole model for ``CPU`` or for HIP (``CUDA``, as ONNX calls GPUs)."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> FusilliRep:
        """Check and compile a model.

        Raises:
            ModelError, PassError: it cannot be compiled.
            DeviceError: the device is not there.
        """
        super().prepare(model, device, **kwargs)
        return FusilliRep(model, _device(device))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile, run once and free; see `FusilliRep.run`."""
        prepared = cls.prepare(model, device, **kwargs)
        try:
            return prepared.run(inputs)
        finally:
            prepared.close()

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU, which needs nothing; a GPU is asked for by name."""
        return device.partition(":")[0] == "CPU"


def _array(name: str, value: Any) -> Array:
    """What is fed; the suite gives elements that numpy has no type for as protos."""
    if isinstance(value, onnx.TensorProto):
        value = to_array(value, None)
    if not isinstance(value, np.ndarray | np.generic):
        raise ModelError(name, "feeds", f"a {type(value).__name__} is given; only tensors can be fed")
    return np.asarray(value, order="C")


def _device(device: str) -> str:
    kind, colon, number = device.partition(":")
    words = {"CPU": "cpu", "CUDA": "hip"}
    if kind not in words:
        raise ModelError("", "device", f"device {device!r} is none of ONNX's; use CPU or CUDA")
    return "cpu" if kind == "CPU" else f"hip{colon}{number}"


def _equal(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype
        and value.shape == other[name].shape
        and value.tobytes() == other[name].tobytes()
        for name, value in one.items()
    )
