"""``torch.compile(model, backend="fusilli")``: PyTorch's forward and backward graphs as programs of hipDNN graphs."""

from hipdnn_backend.offload.torch_compile.backend import fusilli
from hipdnn_backend.offload.torch_compile.report import torch_report

__all__ = ["fusilli", "torch_report"]
