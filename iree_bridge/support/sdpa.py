"""What targets serve of attention."""

from __future__ import annotations

from graph_api import DataType
from graph_api.ops.sdpa import SdpaNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["NO_RANDOM_NUMBERS", "UNSETTLED_ALIBI", "sdpa"]

UNSETTLED_ALIBI = (
    "alibi_mask: sources agree on its biases up to the diagonal of the first query and key; set "
    "diagonal_band_right_bound=0 at the top left, or add the bias that is meant with bias="
)
NO_RANDOM_NUMBERS = (
    "dropout_probability: no source says which random numbers a seed and an offset stand for, so no other engine, and "
    "no gradient of one, would drop the same; set it to 0, or give dropout_mask and dropout_scale"
)
_WHY = {
    "alibi_mask": UNSETTLED_ALIBI,
    "dropout_probability": NO_RANDOM_NUMBERS,
    "rng_dump": "rng_dump: nothing is drawn at random here; give dropout_mask, which is what it would hold",
}


@support_rule("sdpa")
def sdpa(node: SdpaNode, target: Target) -> None:
    """Every option whose result is settled."""
    _decline_powers(node)
    option = node.unsettled()
    if option is not None:
        raise Decline(option, _WHY[option])


def _decline_powers(node: SdpaNode) -> None:
    for port in ("q", "k", "v"):
        tensor = node.inputs[port]
        if tensor.data_type is DataType.FP8_E8M0:
            raise Decline(
                "dtype",
                f"{port} '{tensor.name}' is FP8_E8M0, which has powers of two alone; convert it with a pointwise "
                "IDENTITY",
            )
