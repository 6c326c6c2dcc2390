"""Checkpointed activations, and data parallel training in two processes, with compiled models."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusilli_plugin.bench.networks.training import Block  # noqa: E402
from hipdnn_backend.offload.torch_compile import fusilli, torch_report  # noqa: E402 - needs torch

pytestmark = [pytest.mark.mlir, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("fresh")]
ROOT = Path(__file__).parents[4]

DATA_PARALLEL = """
import sys, torch
from torch.nn.parallel import DistributedDataParallel
from hipdnn_backend.offload.torch_compile import fusilli, torch_report
from fusilli_plugin.bench.networks.training import Residual

rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(Residual(3, 8, 1), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
plain = torch.nn.Sequential(Residual(3, 8, 1), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
plain.load_state_dict(model.state_dict())
x = torch.randn(2, 2, 3, 6, 6)[rank]
results = []
for module in (model, plain):
    wrapped = DistributedDataParallel(module)
    call = torch.compile(wrapped, backend=fusilli) if module is model else wrapped
    steps = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        loss = call(x).square().mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
    results.append([*module.parameters(), *module.buffers()])
for one, other in zip(*results):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
gathered = [torch.empty_like(results[0][0]) for _ in range(2)]
torch.distributed.all_gather(gathered, results[0][0].detach())
assert torch.equal(*gathered)
from torch._dynamo.utils import counters
assert counters["aot_autograd"]["ok"] >= 1
torch.distributed.destroy_process_group()
"""


def test_data_parallel_training_in_two_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DATA_PARALLEL]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors


def test_checkpointed_activations() -> None:
    """They are computed again in the backward graph, and gradients are the same."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block(32, 4) for _ in range(2))

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(2, 8, 32)
    plain, call = copy.deepcopy(model), torch.compile(model, backend=fusilli)
    call(x).square().mean().backward()
    plain(x).square().mean().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    forward, backward = torch_report(call).graphs
    assert backward.nodes > 1.5 * forward.nodes
    assert backward.engine_flops > 2.5 * forward.engine_flops  # once more forward, and two products for each
