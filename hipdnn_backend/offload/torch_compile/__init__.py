"""``torch.compile(model, backend="fusilli")``: PyTorch's forward and backward graphs as programs of hipDNN graphs."""

from importlib.metadata import entry_points

from torch._dynamo.backends.registry import register_backend

from hipdnn_backend.offload.torch_compile.backend import fusilli
from hipdnn_backend.offload.torch_compile.report import torch_report

__all__ = ["fusilli", "torch_report"]

if not entry_points(group="torch_dynamo_backends", name="fusilli"):  # a source tree that was not installed
    register_backend(fusilli, name="fusilli")
