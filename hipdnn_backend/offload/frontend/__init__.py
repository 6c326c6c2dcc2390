"""The front end: ONNX, torch-dialect text and PyTorch modules into clean torch IR with static shapes."""

from hipdnn_backend.offload.frontend.imported import Constant, Declared, Imported, TensorInfo
from hipdnn_backend.offload.frontend.loading import declared_arguments, load, prepare
from hipdnn_backend.offload.frontend.weights import control_inputs

__all__ = ["Constant", "Declared", "Imported", "TensorInfo", "control_inputs", "declared_arguments", "load", "prepare"]
