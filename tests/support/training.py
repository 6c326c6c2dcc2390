"""Training steps as graphs that pass arrays to one another, and what a device may be off by after some of them.

A tensor named ``w`` or ``w.t`` is one or another view of the array ``w``: the part behind the dot tells views apart.
"""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graph_api import Graph, PointwiseMode, TensorAttr, numerics

__all__ = [
    "AdamW", "Array", "Arrays", "Bounded", "Drift", "Execute", "Momentum", "Network", "Stage", "bounded", "compute",
    "exact_step", "f32", "key", "result", "view",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
"""Arrays by name, flat."""
Stage = Graph | Callable[[Arrays], Arrays]
"""A graph, or what the host does with arrays: adds others."""
Execute = Callable[[Graph, dict[TensorAttr, Array]], Mapping[TensorAttr, Array]]
"""(graph, its inputs) -> its results, which may be written into views of flat arrays."""
P = PointwiseMode


def f32(value: float) -> float:
    """The float32 next to a number: what a constant of a graph is."""
    return float(np.float32(value))


@dataclass(frozen=True)
class Momentum:
    """Stochastic gradient descent: u' = momentum * u + g, w' = w - rate * u'; ``_u`` holds u."""

    rate: float = 2.0**-4
    momentum: float = f32(0.9)
    kinds: tuple[str, ...] = ("_u",)

    def update(self, g: Graph, name: str, grad: TensorAttr) -> None:
        """Adds the update of a parameter to a graph."""
        w, u = (g.tensor(f"{name}{kind}", dim=grad.dims) for kind in ("", *self.kinds))
        new = g.pointwise(P.ADD, g.pointwise(P.MUL, u, self.momentum), grad)
        result(new, f"next_{name}_u")
        result(g.pointwise(P.SUB, w, g.pointwise(P.MUL, new, self.rate)), f"next_{name}")

    def numbers(self, step: int) -> dict[str, float]:
        """Inputs of the graphs that depend on the step, which counts from 1."""
        return {}

    def formula(self, step: int, w: Any, g: Any, u: Any) -> tuple[Any, ...]:
        """w and u after a step."""
        new = self.momentum * u + g
        return w - self.rate * new, new

    def torch(self, parameters: list[Any], kept: list[dict[str, Any]], step: int) -> Any:
        """PyTorch's optimiser in this state."""
        made = torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum)
        for parameter, state in zip(parameters, kept, strict=True):
            made.state[parameter] = {"momentum_buffer": state["_u"]}
        return made

    @staticmethod
    def state_of(made: Any, parameter: Any) -> dict[str, Any]:
        """What PyTorch's optimiser keeps."""
        return {"_u": made.state[parameter]["momentum_buffer"]}


@dataclass(frozen=True)
class AdamW:
    """``_m`` and ``_v`` hold the running means of g and g^2. Constants are float32 numbers, their complements too."""

    rate: float = 2.0**-6
    decay: float = 2.0**-4
    betas: tuple[float, float] = (f32(0.9), f32(0.99))
    epsilon: float = 2.0**-8
    kinds: tuple[str, ...] = ("_m", "_v")

    def update(self, g: Graph, name: str, grad: TensorAttr) -> None:
        """Adds the update of a parameter to a graph."""
        w, m, v = (g.tensor(f"{name}{kind}", dim=grad.dims) for kind in ("", *self.kinds))
        rate, inverse = (g.tensor(f"{part}.{name}", dim=(1,) * len(grad.dims)) for part in ("rate", "inverse"))
        square = g.pointwise(P.MUL, grad, grad)
        means: list[TensorAttr] = []
        for kind, old, new, beta in zip(self.kinds, (m, v), (grad, square), self.betas, strict=True):
            parts = g.pointwise(P.MUL, old, beta), g.pointwise(P.MUL, new, 1.0 - beta)
            means.append(result(g.pointwise(P.ADD, *parts), f"next_{name}{kind}"))
        root = g.pointwise(P.ADD, g.pointwise(P.MUL, g.pointwise(P.SQRT, means[1]), inverse), self.epsilon)
        change = g.pointwise(P.DIV, g.pointwise(P.MUL, means[0], rate), root)
        kept = g.pointwise(P.MUL, w, 1.0 - self.rate * self.decay)
        result(g.pointwise(P.SUB, kept, change), f"next_{name}")

    def numbers(self, step: int) -> dict[str, float]:
        """Inputs of the graphs that depend on the step, which counts from 1."""
        first, second = (1.0 - beta**step for beta in self.betas)
        return {"rate": self.rate / first, "inverse": second**-0.5}

    def formula(self, step: int, w: Any, g: Any, m: Any, v: Any) -> tuple[Any, ...]:
        """w, m and v after a step."""
        numbers = self.numbers(step)
        m, v = (beta * old + (1.0 - beta) * new for beta, old, new in zip(self.betas, (m, v), (g, g * g), strict=True))
        change = numbers["rate"] * m / (numbers["inverse"] * v**0.5 + self.epsilon)
        return (1.0 - self.rate * self.decay) * w - change, m, v

    def torch(self, parameters: list[Any], kept: list[dict[str, Any]], step: int) -> Any:
        """PyTorch's optimiser in this state."""
        made = torch.optim.AdamW(
            parameters, lr=self.rate, betas=self.betas, eps=self.epsilon, weight_decay=self.decay, foreach=False
        )
        for parameter, state in zip(parameters, kept, strict=True):
            done = torch.tensor(float(step - 1))
            made.state[parameter] = {"step": done, "exp_avg": state["_m"], "exp_avg_sq": state["_v"]}
        return made

    @staticmethod
    def state_of(made: Any, parameter: Any) -> dict[str, Any]:
        """What PyTorch's optimiser keeps."""
        return {"_m": made.state[parameter]["exp_avg"], "_v": made.state[parameter]["exp_avg_sq"]}


@dataclass(frozen=True)
class Network:
    """What is trained.

    Attributes:
        stages: a whole step, from ``parameters``, what the optimiser keeps of each, ``buffers`` and data to ``loss``
            and ``next_<name>`` of all these.
        parameters, buffers: initial float32 arrays; buffers are state that no gradient reaches.
        data: the data of a step, in float64; what float32 does not hold is rounded for the device.
        loss: PyTorch's loss of (parameters, buffers, data); it may put new buffers into ``buffers``.
    """

    stages: Sequence[Stage]
    parameters: Arrays
    buffers: Arrays
    data: Callable[[int], Arrays]
    loss: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]
    optimiser: Momentum | AdamW

    @property
    def state(self) -> Arrays:
        """Everything that goes from step to step, as it is at first."""
        kept = {f"{name}{kind}": np.zeros_like(array)
                for name, array in self.parameters.items() for kind in self.optimiser.kinds}  # fmt: skip
        return self.parameters | kept | self.buffers

    def inputs(self, step: int) -> Arrays:
        """What a step takes beside the state."""
        numbers = {name: np.array([value]) for name, value in self.optimiser.numbers(step).items()}
        return self.data(step) | numbers


def result(tensor: TensorAttr, name: str) -> TensorAttr:
    """Names a result of a graph."""
    return tensor.set_output(True).set_name(name)


def view(flat: Array, tensor: TensorAttr) -> Array:
    """The array of a tensor in the memory of a flat one."""
    strides = tuple(stride * flat.itemsize for stride in tensor.strides)
    return np.ndarray(tensor.dims, flat.dtype, flat.data, 0, strides)


def key(tensor: TensorAttr) -> str:
    """The array that a tensor is a view of."""
    return tensor.name.partition(".")[0]


def compute(stages: Sequence[Stage], memory: Arrays, execute: Execute) -> None:
    """Does a step on a device; adds what it makes to ``memory``."""
    for stage in stages:
        if not isinstance(stage, Graph):
            memory.update(stage(memory))
            continue
        outputs, inputs = stage.arguments()
        results = execute(stage, {tensor: view(memory[key(tensor)], tensor) for tensor in inputs})
        for tensor in outputs:
            flat = np.empty(tensor.volume, tensor.data_type.numpy)
            view(flat, tensor)[...] = results[tensor]
            memory[key(tensor)] = flat


@dataclass(frozen=True)
class Bounded:
    """Arrays of a step in float64, bounds of what a device is off by, and tensors with which results are compared."""

    values: Arrays
    errors: Arrays
    tensors: dict[str, TensorAttr]

    def compare(self, name: str, got: Array, expected: Array) -> numerics.Comparison:
        """A result of a device with what it should be."""
        tensor = self.tensors[name]
        ours, theirs, bound = (view(np.ascontiguousarray(flat).reshape(-1), tensor)
                               for flat in (got, expected, self.errors[name]))  # fmt: skip
        return numerics.compare(tensor, ours, theirs, bound)


def bounded(stages: Sequence[Stage], state: Arrays, data: Arrays) -> Bounded:
    """A step from a device's state: the running error analysis of one graph takes over that of those before it."""
    values = {name: array.reshape(-1).astype(np.float64) for name, array in (state | data).items()}
    errors = {name: np.abs(array.astype(np.float32).astype(np.float64) - array) for name, array in values.items()}
    tensors: dict[str, TensorAttr] = {}
    for stage in stages:
        if not isinstance(stage, Graph):
            made = stage(values)
            values.update({name: array.astype(np.float64) for name, array in made.items()})
            errors.update({name: np.zeros(array.shape) for name, array in made.items()})
            continue
        outputs, inputs = stage.arguments()
        pack, off = ({tensor: view(held[key(tensor)], tensor) for tensor in inputs} for held in (values, errors))
        evaluation = numerics.evaluate(stage, pack, input_errors=off)
        for tensor in outputs:
            for held, array in ((values, evaluation.values[tensor]), (errors, evaluation.errors[tensor])):
                held[key(tensor)] = np.empty(tensor.volume)
                view(held[key(tensor)], tensor)[...] = array
            tensors[key(tensor)] = tensor
    return Bounded(values, errors, tensors)


def exact_step(network: Network, state: Arrays, step: int) -> Arrays:
    """Loss and next state by PyTorch in float64: autograd, ``torch.optim``."""
    held = {name: torch.tensor(array, dtype=torch.float64) for name, array in state.items()}
    data = {name: torch.tensor(array) for name, array in network.data(step).items()}
    parameters = {name: held[name].requires_grad_() for name in network.parameters}
    buffers = {name: held[name] for name in network.buffers}
    kept = [{kind: held[f"{name}{kind}"] for kind in network.optimiser.kinds} for name in parameters]
    optimiser = network.optimiser.torch(list(parameters.values()), kept, step)
    loss = network.loss(parameters, buffers, data)
    loss.backward()
    optimiser.step()
    found = {"loss": loss}
    for name, parameter in parameters.items():
        found[f"next_{name}"] = parameter
        for kind, value in network.optimiser.state_of(optimiser, parameter).items():
            found[f"next_{name}{kind}"] = value
    found |= {f"next_{name}": value for name, value in buffers.items()}
    return {name: value.detach().numpy().reshape(-1) for name, value in found.items()}


class Drift:
    """How far a device's parameters may be from PyTorch's after some steps, to first order.

    Each step adds what the running error analysis allows it, and the derivative of the step carries on what was there:
    with the Hessian of the loss, and the derivative of the optimiser's formula, of each element on its own. One column
    for each element of the state and step keeps the signs, so that bounds do not grow where errors shrink.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.names = list(network.parameters)
        self.sizes = [array.size for array in network.parameters.values()]
        self.columns = np.zeros((1 + len(network.optimiser.kinds), sum(self.sizes), 0), np.float32)

    def step(self, state: Arrays, step: int, local: Arrays) -> None:
        """Goes on by a step from PyTorch's ``state``; ``local`` bounds what a device adds to each array of it."""
        gradient, hessian = self._derivatives(state, step)
        kinds = ("", *self.network.optimiser.kinds)
        w, *kept = (torch.tensor(self._flat(state, kind), dtype=torch.float64) for kind in kinds)
        slopes = self._slopes(step, (w, gradient, *kept))
        moved = hessian @ self.columns[0]
        errors = (moved if port == 1 else self.columns[max(port - 1, 0)] for port in range(len(slopes[0])))
        carried = [np.zeros_like(moved) for _ in kinds]
        for port, error in enumerate(errors):
            for out, total in enumerate(carried):
                total += slopes[out][port][:, None] * error
        fresh = np.zeros((len(kinds), len(w), len(kinds), len(w)), np.float32)
        for index, kind in enumerate(kinds):
            fresh[index, np.arange(len(w)), index, np.arange(len(w))] = self._flat(local, kind)
        self.columns = np.concatenate([np.stack(carried), fresh.reshape(len(kinds), len(w), -1)], axis=2)

    def bounds(self) -> Arrays:
        """Of each parameter now, without slack."""
        total = np.abs(self.columns[0]).sum(1)
        return dict(zip(self.names, np.split(total, np.cumsum(self.sizes)[:-1]), strict=True))

    def _flat(self, arrays: Arrays, kind: str) -> Array:
        return np.concatenate([arrays[f"{name}{kind}"].reshape(-1) for name in self.names])

    def _derivatives(self, state: Arrays, step: int) -> tuple[Any, Array]:
        data = {name: torch.tensor(array) for name, array in self.network.data(step).items()}
        shapes = [array.shape for array in self.network.parameters.values()]

        def loss(w: Any) -> Any:
            parts = (part.view(shape) for part, shape in zip(torch.split(w, self.sizes), shapes, strict=True))
            buffers = {name: torch.tensor(state[name], dtype=torch.float64) for name in self.network.buffers}
            return self.network.loss(dict(zip(self.names, parts, strict=True)), buffers, data)

        w = torch.tensor(self._flat(state, ""), dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(w), w, create_graph=True)
        rows = torch.eye(len(w), dtype=torch.float64)
        (hessian,) = torch.autograd.grad(gradient, w, rows, is_grads_batched=True)
        return gradient.detach(), hessian.numpy().astype(np.float32)

    def _slopes(self, step: int, inputs: tuple[Any, ...]) -> list[list[Array]]:
        """Derivatives of each result of the optimiser's formula by (w, g, what it keeps), per element."""
        leaves = [value.clone().requires_grad_() for value in inputs]
        slopes: list[list[Array]] = []
        for out in self.network.optimiser.formula(step, *leaves):
            found = torch.autograd.grad(out.sum(), leaves, retain_graph=True, allow_unused=True)
            slopes.append([np.zeros(len(inputs[0]), np.float32) if one is None else one.numpy().astype(np.float32)
                           for one in found])  # fmt: skip
        return slopes
