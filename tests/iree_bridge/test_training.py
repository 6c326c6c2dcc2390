"""Training by graphs alone: forward, gradients and update of three networks, each number next to PyTorch's in float64.

A step is compared with PyTorch's from the same state, every parameter, what the optimiser keeps of it, and running
statistics, within the bound that the running error analysis of its graphs gives each element; and each graph's results
with the reference of its own inputs, whose bounds are closer. Over all steps parameters may differ by the bounds of the
steps, carried on by the derivatives of those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from fusilli_plugin.emulator import Emulator
from graph_api import Graph, TensorAttr, numerics
from iree_bridge import Executable, Target, build
from tests.support.training import Array, Arrays, Drift, Execute, Network, bounded, compute, exact_step
from tests.support.training_networks import NETWORKS

STEPS = 20


def on_the_cpu() -> Execute:
    """What runs a graph on the CPU, compiled once."""
    made: dict[str, Executable] = {}

    def execute(graph: Graph, pack: dict[TensorAttr, Array]) -> Mapping[TensorAttr, Array]:
        if graph.name not in made:
            made[graph.name] = build(graph, device="cpu")
        results = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
        made[graph.name].run({**pack, **results})
        return results

    return execute


def emulated(chip: str) -> Execute:
    """What runs a graph's code for an AMD chip in the emulator."""
    emulator = Emulator(Target.parse(chip))
    return lambda graph, pack: emulator.run(graph, pack)[0]


def checked(execute: Execute) -> Execute:
    """The same, with the results of each graph compared with the reference of the inputs that it had."""

    def run(graph: Graph, pack: dict[TensorAttr, Array]) -> Mapping[TensorAttr, Array]:
        results = execute(graph, pack)
        for comparison in numerics.check(graph, pack, results):
            assert comparison.ok, f"{graph.name}: {comparison}"
        return results

    return run


def train(network: Network, execute: Execute, steps: int) -> Iterator[tuple[int, Arrays, Arrays]]:
    """Each step's number, the state before it, and what it made."""
    state = {name: array.reshape(-1) for name, array in network.state.items()}
    for step in range(1, steps + 1):
        memory = state | {name: array.reshape(-1).astype(np.float32) for name, array in network.inputs(step).items()}
        compute(network.stages, memory, execute)
        yield step, state, memory
        state = {name: memory[f"next_{name}"] for name in state}


def shaped(network: Network, state: Arrays) -> Arrays:
    return {name: state[name].reshape(array.shape) for name, array in network.state.items()}


def compared(network: Network, state: Arrays, step: int, memory: Arrays) -> list[numerics.Comparison]:
    """What a step made next to PyTorch's step from the same state."""
    bounds, exact = (
        bounded(network.stages, state, network.inputs(step)),
        exact_step(network, shaped(network, state), step),
    )
    assert set(exact) == {"loss", *(f"next_{name}" for name in network.state)}
    for name, expected in exact.items():
        np.testing.assert_allclose(bounds.values[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)
    return [bounds.compare(name, memory[name], expected) for name, expected in exact.items()]


def check_steps(network: Network, execute: Execute, steps: int = STEPS) -> None:
    losses = []
    for step, state, memory in train(network, checked(execute), steps):
        for comparison in compared(network, state, step, memory):
            assert comparison.ok, f"step {step}: {comparison}"
        losses.append(float(memory["loss"][0]))
    if steps == STEPS:  # two batches take turns
        assert sum(losses[-2:]) < 0.6 * sum(losses[:2]), losses


@pytest.mark.thorough
@pytest.mark.iree_cpu
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_each_step_is_pytorchs(make: Callable[[], Network]) -> None:
    check_steps(make(), on_the_cpu())


@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_all_steps_together_stay_near_pytorchs(make: Callable[[], Network]) -> None:
    network = make()
    exact, drift = network.state, Drift(network)
    for step, _, memory in train(network, on_the_cpu(), STEPS):
        errors = bounded(network.stages, exact, network.inputs(step)).errors
        drift.step(exact, step, {name: errors[f"next_{name}"] for name in exact})
        made = exact_step(network, exact, step)
        exact = shaped(network, {name: made[f"next_{name}"] for name in exact})
        for name, bound in drift.bounds().items():
            off = np.abs(memory[f"next_{name}"] - exact[name].reshape(-1))
            assert np.all(off <= numerics.SLACK * bound), f"step {step}: {name} is off by {off.max()}"
            # A step is some ten roundings, one after the other: what a fault smaller than the bounds would exceed.
            assert off.max() <= 10 * step * 2.0**-24 * np.abs(exact[name]).max(), (
                f"step {step}: {name} is off by {off.max()}"
            )


@pytest.mark.thorough
@pytest.mark.mlir
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "cnn" else pytest.mark.slow) for name in NETWORKS]
)
def test_a_step_on_gfx942(name: str) -> None:
    check_steps(NETWORKS[name](), emulated("gfx942"), 1)


@pytest.mark.mlir
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_each_step_on_gfx942(name: str) -> None:
    check_steps(NETWORKS[name](), emulated("gfx942"))


@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("name", "graph", "result", "factor"),
    [
        ("cnn", "cnn", "next_w1_u", 1.02),
        ("transformer", "attention_gradients", "dk", 1.0001),
        ("experts", "expert_gradients", "dw2", 1.0001),
    ],
)
def test_a_wrong_element_of_a_gradient_is_found(name: str, graph: str, result: str, factor: float) -> None:
    network, right = NETWORKS[name](), on_the_cpu()

    def execute(stage: Graph, pack: dict[TensorAttr, Array]) -> Mapping[TensorAttr, Array]:
        results = right(stage, pack)
        if stage.name == graph:
            array = results[stage.find(result)]
            array[np.unravel_index(np.argmax(np.abs(array)), array.shape)] *= factor
        return results

    with pytest.raises(AssertionError, match=f"{graph}: '{result}' WRONG"):
        check_steps(network, execute, 1)
