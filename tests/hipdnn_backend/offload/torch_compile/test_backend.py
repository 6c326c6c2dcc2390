"""The backend as users meet it: found by name, its options, its report, strict mode."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402

import fusilli_plugin  # noqa: E402 - needs torch
from fusilli_ground.errors import OptionError  # noqa: E402
from hipdnn_backend.offload.torch_compile import fusilli, torch_report  # noqa: E402
from hipdnn_backend.offload.torch_compile.report import NotCompiledByEnginesError  # noqa: E402

pytestmark = [pytest.mark.mlir, pytest.mark.usefixtures("fresh")]
ROOT = Path(__file__).parents[4]
GROUP = "torch_dynamo_backends"


class Plus(torch.nn.Module):
    """Of a file of ours: Dynamo does not look into PyTorch's own for `Module.compile`."""

    def forward(self, x: Any) -> Any:
        return x + x


def test_no_import_is_needed(tmp_path: Path) -> None:
    """With the entry points of pyproject.toml, whatever was installed here when."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]
    info = tmp_path / "named-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: named\nVersion: 1\n", encoding="utf-8")
    lines = "\n".join(f"{name} = {place}" for name, place in found.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n", encoding="utf-8")
    code = (
        "import torch\n"
        "f = torch.compile(lambda x: x.sin() + 1, backend='fusilli')\n"
        "x = torch.ones(3)\n"
        "assert torch.allclose(f(x), x.sin() + 1)\n"
        "import fusilli_plugin\n"
        "assert fusilli_plugin.torch_report(f).graphs[0].nodes == 2\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"strct": True}}, r"no option 'strct' \(did you mean strict\?\). Its options: engines, layout"),
        ({"options": {"layout": "nhwc"}}, "option 'layout' .* is 'nhwc'; it takes row-major or channels-last or auto"),
        ({"options": {"strict": 1}}, "option 'strict' .* is 1; it takes True or False"),
        ({"options": {"min_nodes": 0}}, "option 'min_nodes' .* it takes a number from 1"),
        ({"options": {"engines": ["NOBODY"]}}, "names NOBODY, which is not here; there are FUSILLI_ENGINE"),
        ({"mode": "max-autotun"}, r"no mode 'max-autotun' \(did you mean max-autotune\?\)"),
    ],
)
def test_options_that_mean_nothing(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=message) as caught:
        torch.compile(lambda x: x + x, backend=fusilli, **settings)(torch.ones(3))
    assert isinstance(caught.value.inner_exception, OptionError)  # PyTorch wraps what backends raise


def test_options_that_are_taken() -> None:
    options = {"strict": True, "engines": "FUSILLI_ENGINE", "layout": "channels-last", "max_shapes": 2}
    for settings in ({"options": options}, {"mode": "reduce-overhead"}):
        call = torch.compile(lambda x: x.tanh() + 1, backend=fusilli, **settings)
        assert torch.allclose(call(torch.ones(3)), torch.ones(3).tanh() + 1)


def test_strict_mode_names_what_runs_in_pytorch() -> None:
    call = torch.compile(lambda x: torch.linalg.svd(x)[1] + 1, backend=fusilli, options={"strict": True})
    with pytest.raises(
        Exception, match=r"aten\._linalg_svd\.default '_linalg_svd': the torch dialect has no"
    ) as caught:
        call(torch.ones(3, 3))
    failure: Any = caught.value
    error = failure.inner_exception
    assert isinstance(error, NotCompiledByEnginesError)
    assert [node.operator for node in error.report.unexpected] == ["aten._linalg_svd.default"]


def test_few_operations_stay_in_pytorch() -> None:
    call = torch.compile(lambda x: x + 1, backend=fusilli, options={"min_nodes": 2})
    assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))
    (node,) = torch_report(call).graphs[0].eager
    assert (node.rule, node.is_expected) == ("few", True)


@pytest.mark.thorough
def test_the_report_of_modules_and_functions() -> None:
    model = torch.nn.Linear(3, 2)
    call = torch.compile(model, backend=fusilli)
    assert str(torch_report(call)) == "nothing is compiled yet: call the model first"
    call(torch.ones(4, 3)).sum().backward()
    report = fusilli_plugin.torch_report(call)
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"]
    assert report.flop_share == 1.0
    # As PyTorch counts them: 2 * 4 * 3 * 2 forward, and once more for the weight's gradient.
    assert [graph.flops for graph in report.graphs] == [48, 48]
    other = Plus()
    other.compile(backend=fusilli)
    other(torch.ones(4, 5))
    assert len(torch_report(other).graphs) == 1
    with pytest.raises(TypeError, match="Sequential is nothing that torch.compile"):
        torch_report(torch.nn.Sequential())


def test_what_the_engines_refuse_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that does not compile is left out, with what the engine says; the others are compiled."""
    from fusilli_plugin.engine import FusilliEngine
    from hipdnn_backend.errors import EngineError

    build = FusilliEngine.build

    def refusing(self: Any, graph: bytes, config: Any) -> Any:
        if b"sin" in graph:
            raise EngineError("build", "no sines today")
        return build(self, graph, config)

    monkeypatch.setattr(FusilliEngine, "build", refusing)
    call, x = torch.compile(lambda x: (x @ x).sin() @ x, backend=fusilli), torch.randn(4, 4)
    assert torch.allclose(call(x), (x @ x).sin() @ x, atol=1e-5)
    (graph,) = torch_report(call).graphs
    assert [(node.name, node.rule) for node in graph.eager] == [("sin", "compile")]
    assert "no sines today" in graph.eager[0].reason
    assert (graph.nodes, len(graph.programs)) == (2, 2)
