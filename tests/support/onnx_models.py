"""The models that the bench runs too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx

from fusilli_plugin.checks.generated_models import (
    bert_layer,
    feeds,
    llama_block,
    mlp,
    mobilenet_v2,
    resnet50,
    small_cnn,
    unet,
)

__all__ = ["WHOLE", "bert_layer", "feeds", "llama_block", "mlp", "mobilenet_v2", "resnet50", "small_cnn", "unet"]

WHOLE: dict[str, Callable[[str], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "unet": unet,
    "bert": bert_layer,
    "llama": llama_block,
    "llama in operators of opset 23": partial(llama_block, opset=23),
}
"""Name → what makes a model of full size in a data type."""
