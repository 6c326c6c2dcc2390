"""The front end: ONNX, torch-dialect text and PyTorch modules into clean torch IR with static shapes."""

from hipdnn_backend.offload.frontend.imported import Constant, Imported, TensorInfo
from hipdnn_backend.offload.frontend.loading import load, prepare
from hipdnn_backend.offload.frontend.weights import control_inputs

__all__ = ["Constant", "Imported", "TensorInfo", "control_inputs", "load", "prepare"]
