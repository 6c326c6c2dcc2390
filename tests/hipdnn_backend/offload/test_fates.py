"""What became of each node, from what the parts of the pipeline know."""

from __future__ import annotations

from hipdnn_backend.offload.node_outcomes import Absorbed, Became, fates


def test_each_node_has_one_fate() -> None:
    sources = {name: "Op" for name in ("conv", "norm", "split", "flat", "odd", "lost")}
    absorbed = {"norm": Absorbed(Became.MERGED, ("conv",))}
    graphs = [("conv", "split"), ("split", "flat", "inner__1")]
    found = fates(sources, absorbed, graphs, views=[("flat",), ("view", "conv")], unclaimed=["odd"])
    assert {fate.node: (fate.became, fate.into, fate.graphs) for fate in found} == {
        "conv": (Became.GRAPH, (), (0,)),
        "norm": (Became.MERGED, ("conv",), ()),
        "split": (Became.GRAPH, (), (0, 1)),
        "flat": (Became.GRAPH, (), (1,)),
        "odd": (Became.UNCLAIMED, (), ()),
        "lost": (Became.SIMPLIFIED, (), ()),
        "inner__1": (Became.GRAPH, (), (1,)),
        "view": (Became.VIEW, (), ()),
    }
    assert [fate.operator for fate in found] == ["Op"] * 6 + ["", ""]


def test_fates_in_words_and_as_json() -> None:
    (fate,) = fates({"a": "own.F"}, {"a": Absorbed(Became.INLINED, ("b", "c"))}, [], [])
    assert fate.words == "a function of the model, which became b, c"
    assert fate.document() == {
        "node": "a", "operator": "own.F", "became": "inlined", "into": ["b", "c"], "graphs": [], "words": fate.words,
    }  # fmt: skip
