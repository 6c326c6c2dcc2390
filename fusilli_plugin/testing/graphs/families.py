"""The families of random graphs, each graph made from a number: the same number, the same graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fusilli_plugin.testing.graphs import attention, chains, convolutions, custom, elementwise, norms, products
from fusilli_plugin.testing.graphs.draw import Draw, RandomDraw
from graph_api import Graph

__all__ = ["FAMILIES", "graph"]

FAMILIES: Final[dict[str, tuple[Callable[[Draw], Graph | None], float]]] = {
    "product": (products.product, 0.18),
    "convolution": (convolutions.convolution, 0.24),
    "points": (convolutions.points, 0.08),
    "groups": (convolutions.groups, 0.08),
    "narrow": (convolutions.narrow, 0.06),
    "attention": (attention.attention, 0.08),
    "attention gradients": (attention.attention_gradients, 0.04),
    "pool": (norms.pool, 0.09),
    "reduction": (norms.reduction, 0.07),
    "norm": (norms.norm, 0.08),
    "pointwise": (elementwise.pointwise, 0.04),
    "small product": (products.small_product, 0.04),
    "scaled product": (products.scaled_product, 0.04),
    "quantized": (products.quantized, 0.03),
    "pool gradient": (norms.pool_gradient, 0.05),
    "norm gradient": (norms.norm_gradient, 0.05),
    "experts": (products.experts, 0.04),
    "small convolution": (convolutions.small_convolution, 0.04),
    "small attention": (attention.small_attention, 0.03),
    "shared": (elementwise.shared, 0.05),
    # By name only: the sweeps that documents count, and tests repeat, were made of those above.
    "chain": (chains.chain, 0.0),
    "shared image": (convolutions.shared_image, 0.0),
    "custom": (custom.custom, 0.0),
}
"""Family → how a graph of it is made, and how often it comes where no family is asked for."""

_ATTEMPTS: Final = 100


def graph(seed: int, family: str | None = None) -> Graph:
    """A validated graph.

    Args:
        seed: decides everything.
        family: a key of `FAMILIES`; by default one that the seed chooses.
    """
    for attempt in range(_ATTEMPTS):
        draw = RandomDraw(seed * 1000 + attempt)
        name = family or draw.weighted(list(FAMILIES), [weight for _, weight in FAMILIES.values()])
        made = FAMILIES[name][0](draw)
        if made is not None:
            made.name = f"{name}_{seed}"
            return made.validate()
    raise AssertionError(f"no graph for {seed}")
