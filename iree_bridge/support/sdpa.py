"""What targets serve of attention."""

from __future__ import annotations

from graph_api.ops.attention import AttentionNode
from graph_api.ops.sdpa import SdpaNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["NO_RANDOM_NUMBERS", "UNSETTLED_ALIBI", "decline_small_floats", "sdpa"]

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
_SCALING = "8-bit scaling is not served; scale q, k, v and o with pointwise MUL, and the scores with attn_scale"


@support_rule("sdpa")
def sdpa(node: SdpaNode, target: Target) -> None:
    """Every option whose result is settled, of the data types of 16 bits and more."""
    decline_small_floats(node)
    option = node.unsettled()
    if option is not None:
        raise Decline(option, _WHY.get(option, f"{option}: {_SCALING}"))


def decline_small_floats(node: AttentionNode) -> None:
    """Of no operand or result, in either direction: the emission of their products does not know such types."""
    for port, tensor in (node.inputs | node.outputs).items():
        if tensor.data_type.is_small_float:
            raise Decline(
                "dtype",
                f"{port} '{tensor.name}' is {tensor.data_type.name}; attention is served of larger floats, convert it "
                "with a pointwise IDENTITY",
            )
