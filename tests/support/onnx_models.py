"""The models that the bench runs too."""

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

__all__ = ["bert_layer", "feeds", "llama_block", "mlp", "mobilenet_v2", "resnet50", "small_cnn", "unet"]
