"""The setup: what depends on constants alone runs once, when a program is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload import load
from hipdnn_backend.offload.program import program as p
from hipdnn_backend.offload.program.document import from_document, to_document
from hipdnn_backend.offload.program.runner import prepare
from hipdnn_backend.offload.program.setup import with_setup
from tests.hipdnn_backend.fake_plans import FakePlan, GuardedMemory, wire

DIMS, STRIDES, NBYTES = (2, 3), (3, 1), 24
W = np.array([[1, -1, -9], [1, -2, 1]], np.float32)
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
KERNELS = ("add", "relu", "double")


def program(temporaries: int, steps: Sequence[tuple[str, tuple[str, ...]]]) -> p.Program:
    """Over x, w, y and temporaries t0, t1, ...; a step is the name of a kernel and of its operands, the result last."""
    spaces = {"x": p.Space.INPUT, "w": p.Space.CONSTANT, "y": p.Space.OUTPUT}
    spaces |= {f"t{number}": p.Space.TEMPORARY for number in range(temporaries)}
    place = {name: number for number, name in enumerate(spaces)}
    return p.Program(
        name="main",
        inputs=(p.Named("x", 0),),
        outputs=(p.Named("y", 2),),
        constants=(p.Named("w", 1),),
        buffers=tuple(p.Buffer(space, name, NBYTES) for name, space in spaces.items()),
        views=tuple(p.View(number, 0, DIMS, STRIDES, "float32") for number in place.values()),
        graphs=(
            p.PlannedGraph("add", "FAKE_ENGINE", 0, (1, 2), (100,), 0),
            p.PlannedGraph("relu", "FAKE_ENGINE", 1, (1,), (100,), 100),
            p.PlannedGraph("double", "FAKE_ENGINE", 2, (1,), (100,), 0),
        ),
        steps=tuple(p.Execute(KERNELS.index(name), tuple(place[each] for each in used)) for name, used in steps),
    )


def plans() -> list[FakePlan]:
    return [
        FakePlan(wire("add", [DIMS, DIMS], DIMS)), FakePlan(wire("relu", [DIMS], DIMS), 100),
        FakePlan(wire("double", [DIMS], DIMS)),
    ]  # fmt: skip


CHAIN = program(
    3, [("double", ("x", "t2")), ("double", ("w", "t0")), ("relu", ("t0", "t1")), ("add", ("t2", "t1", "y"))]
)
"""y = 2 x + relu(2 w): t0 is of the setup alone, t1 is kept."""


def test_what_depends_on_constants_alone_runs_once() -> None:
    made = p.placed(with_setup(CHAIN))
    assert [made.step_name(step) for step in made.steps] == ["double", "relu", "double", "add"]
    assert made.setup == 2
    assert [buffer.space for buffer in made.buffers[3:]] == [p.Space.TEMPORARY, p.Space.FOLDED, p.Space.TEMPORARY]
    memory, used = GuardedMemory(), plans()
    prepared = prepare(from_document(to_document(made)), used, memory, {"w": W})
    assert [plan.runs for plan in used] == [0, 1, 1]
    expected = 2 * X + np.maximum(2 * W, 0)
    for factor in (1, 3):
        result = prepared.run({"x": X * factor})["y"]
        np.testing.assert_array_equal(result, expected + 2 * X * (factor - 1))
    assert [plan.runs for plan in used] == [2, 1, 3]
    timings = prepared.profile({"x": X})
    assert [timing.name for timing in timings] == ["double", "relu", "double", "add"]
    np.testing.assert_array_equal(prepared.run({"x": X})["y"], expected)
    assert prepared.constant_bytes == 2 * NBYTES
    memory.check()
    prepared.close()
    assert memory.live_count == 0


def test_a_result_of_the_model_is_written_in_each_run() -> None:
    made = with_setup(program(1, [("double", ("w", "t0")), ("relu", ("t0", "y"))]))
    assert made.setup == 1
    used = plans()
    prepared = prepare(p.placed(made), used, GuardedMemory(), {"w": W})
    for _ in range(2):
        np.testing.assert_array_equal(prepared.run({"x": X})["y"], np.maximum(2 * W, 0))
    assert [plan.runs for plan in used] == [0, 2, 1]


@pytest.mark.parametrize(
    ("steps", "setup"),
    [
        ([("double", ("x", "t0")), ("relu", ("t0", "y"))], 0),
        # t0 is written again, by what a run gives
        ([("double", ("w", "t0")), ("relu", ("t0", "t1")), ("double", ("x", "t0")), ("add", ("t0", "t1", "y"))], 0),
        # t0 is read in each run before w comes into it
        ([("double", ("x", "t1")), ("relu", ("t0", "y")), ("double", ("w", "t0")), ("add", ("t0", "t1", "y"))], 0),
        # t0 is written twice, by constants alone
        ([("double", ("w", "t0")), ("relu", ("t0", "t1")), ("relu", ("w", "t0")), ("add", ("t0", "t1", "y"))], 3),
    ],
)
def test_which_steps_move(steps: list[tuple[str, tuple[str, ...]]], setup: int) -> None:
    asked = program(2, steps)
    made = with_setup(asked)
    assert made.setup == setup
    found = prepare(p.placed(made), plans(), GuardedMemory(), {"w": W}).run({"x": X})["y"]
    np.testing.assert_array_equal(
        found, prepare(p.placed(asked), plans(), GuardedMemory(), {"w": W}).run({"x": X})["y"]
    )


@pytest.mark.parametrize(("nbytes", "kept"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_large_results_of_small_constants_share_memory(nbytes: int, kept: bool) -> None:
    buffers = [replace(b, nbytes=nbytes) if b.name == "t1" else b for b in CHAIN.buffers]
    made = with_setup(replace(CHAIN, buffers=tuple(buffers)))
    assert made.setup == (2 if kept else 1)  # t0 is small: it is kept instead
    assert [b.name for b in made.buffers if b.space is p.Space.FOLDED] == (["t1"] if kept else ["t0"])


def test_large_results_of_large_constants_are_kept() -> None:
    sizes = {"w": 1 << 20, "t1": 4 << 20}
    buffers = tuple(replace(b, nbytes=sizes.get(b.name, b.nbytes)) for b in CHAIN.buffers)
    assert with_setup(replace(CHAIN, buffers=buffers)).setup == 2
    buffers = tuple(replace(b, nbytes=b.nbytes + (b.name == "t1")) for b in buffers)
    assert with_setup(replace(CHAIN, buffers=buffers)).setup == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"setup": 5}, "the setup has 5 steps, all steps are 4"),
        ({"setup": 3}, "step 2 is of the setup and uses input 'x'"),
        ({"setup": 1}, r"step 1 \(relu\) writes folded 't1'"),
    ],
)
def test_a_wrong_setup_is_refused(change: dict[str, int], said: str) -> None:
    document = to_document(p.placed(with_setup(CHAIN))) | change
    with pytest.raises(p.ProgramError, match=said):
        from_document(document)


def test_what_varies_runs_each_time() -> None:
    made = with_setup(CHAIN, {"relu"})
    assert made.setup == 1
    assert with_setup(CHAIN, {"double"}).setup == 0


def test_folded_memory_is_written_before_it_is_read() -> None:
    document = to_document(p.placed(with_setup(CHAIN)))
    steps = document["steps"]
    with pytest.raises(p.ProgramError, match="step 3 reads folded 't1', which nothing has written"):
        from_document({**document, "steps": [steps[0], steps[0], *steps[2:]]})


def test_memory_is_freed_if_the_setup_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise EngineError("double", "no")

    memory, used = GuardedMemory(), plans()
    monkeypatch.setattr(used[1], "execute", fail)
    with pytest.raises(EngineError, match="no"):
        prepare(p.placed(with_setup(CHAIN)), used, memory, {"w": W})
    assert memory.live_count == 0


@pytest.mark.mlir
@pytest.mark.iree_cpu
@pytest.mark.filterwarnings("ignore")
def test_a_module_that_prepares_its_weights(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(W))

        def forward(self, x: Any) -> Any:
            return x * torch.cumsum(self.w, 1)

    expected = X * np.cumsum(W, 1)
    with load(Sums().eval(), example=(torch.from_numpy(X),)) as model:
        assert (model.program.setup, len(model.program.steps)) == (1, 2)
        model.save(tmp_path / "sums.fusilli")
    with load(tmp_path / "sums.fusilli") as model:
        assert model.program.setup == 1
        (x,) = (tensor.name for tensor in model.inputs)
        for _ in range(2):
            (y,) = model.run({x: X}).values()
            np.testing.assert_allclose(y, expected, rtol=1e-6)
