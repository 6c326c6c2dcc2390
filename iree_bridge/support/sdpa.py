"""What targets serve of attention."""

from __future__ import annotations

from graph_api.ops.sdpa import SdpaNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["sdpa"]

_WHY = {
    "alibi_mask": "the sources do not settle its slopes; add the bias that is meant with bias=",
    "dropout_probability": "random numbers would have to equal another engine's; set it to 0, as inference does",
    "max_seq_len_kv": "paged caches are not served; gather the pages into k and v first",
    "page_table_k": "paged caches are not served; gather the pages into k and v first",
    "page_table_v": "paged caches are not served; gather the pages into k and v first",
    "dropout_mask": "dropout is not served; leave it out, as inference does",
    "dropout_scale": "dropout is not served; leave it out, as inference does",
    "block_mask": "block masks are not served; add an equal mask of 0 and -inf with bias=",
    "rng_dump": "dropout is not served; leave it out, as inference does",
    "sink_token together with max or sum_exp": "whether they count the sink is not settled; ask for stats, which does",
}
_SCALING = "8-bit scaling is not served; scale q, k, v and o with pointwise MUL, and the scores with attn_scale"


@support_rule("sdpa")
def sdpa(node: SdpaNode, target: Target) -> None:
    """Every option whose result is settled, of the data types of 16 bits and more."""
    for port, tensor in (node.inputs | node.outputs).items():
        if tensor.data_type.is_small_float:
            raise Decline(
                "dtype",
                f"{port} '{tensor.name}' is {tensor.data_type.name}; attention is served of larger floats, convert it "
                "with a pointwise IDENTITY",
            )
    option = node.unsettled()
    if option is not None:
        name = option.split(" ", 1)[0]
        raise Decline(name, f"{option}: {_WHY.get(option, _SCALING)}")
