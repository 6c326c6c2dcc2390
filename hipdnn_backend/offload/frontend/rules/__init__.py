"""The rewrite rules, a file per family; importing this package registers them."""

from hipdnn_backend.offload.frontend.rules import (
    activation,
    affine,
    attention,
    chance,
    contrib,
    contrib_attention,
    conv,
    identity,
    indices,
    matmul,
    norm,
    pool,
    quantised,
    recurrent,
    reduction,
    slicing,
)

__all__ = [
    "activation",
    "affine",
    "attention",
    "chance",
    "contrib",
    "contrib_attention",
    "conv",
    "identity",
    "indices",
    "matmul",
    "norm",
    "pool",
    "quantised",
    "recurrent",
    "reduction",
    "slicing",
]
