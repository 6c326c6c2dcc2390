"""Sets of operations: convexity, joining and order, compared with searches over all paths."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from hipdnn_backend.offload.passes.graph import FunctionGraph, bits, functions, mask_of
from tests.support.passes import parsed

V = "!torch.vtensor<[4],f32>"


def graph_of(producers: list[list[int]]) -> tuple[FunctionGraph, object]:
    """A function in which operation n adds up the results of ``producers[n]``, or takes the argument."""
    lines = ["%one = torch.constant.int 1"]
    for number, feeding in enumerate(producers):
        last = f"%{feeding[0]}" if feeding else "%x"
        for step, producer in enumerate(feeding[1:2]):
            last = f"{last}, %{producer}"
            del step
        second = last if "," in last else f"{last}, %x"
        lines.append(f"%{number} = torch.aten.add.Tensor {second}, %one : {V}, {V}, !torch.int -> {V}")
    body = "\n".join(lines)
    module = parsed(f"func.func @f(%x: {V}) -> {V} {{\n{body}\nreturn %{len(producers) - 1} : {V} }}")
    return FunctionGraph(next(functions(module)), max_literal=1), module


@st.composite
def dags(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(2, 7))
    return [sorted(draw(st.sets(st.integers(0, n - 1), max_size=2))) if n else [] for n in range(size)]


def reachable(edges: set[tuple[int, int]], size: int) -> set[tuple[int, int]]:
    found = set(edges)
    for middle, a, b in itertools.product(range(size), repeat=3):
        if (a, middle) in found and (middle, b) in found:
            found.add((a, b))
    return found


def is_convex(edges: set[tuple[int, int]], size: int, group: set[int]) -> bool:
    paths = reachable(edges, size)
    return not any((a, n) in paths and (n, b) in paths for n in set(range(size)) - group for a in group for b in group)


@given(dags(), st.data())
@settings(max_examples=60, deadline=None)
def test_convexity_and_order(producers: list[list[int]], data: st.DataObject) -> None:
    graph, _module = graph_of(producers)
    size = len(producers)
    edges = {(p, n) for n, feeding in enumerate(producers) for p in feeding}
    joined: list[int] = []
    for _ in range(2):
        free = [n for n in range(size) if not any(mask >> n & 1 for mask in joined)]
        if not free:
            break
        group = data.draw(st.sets(st.sampled_from(free), min_size=1))
        expected = is_convex(edges, size, group)
        assert graph.is_convex(mask_of(group)) == expected
        closed = set(bits(graph.close(mask_of(group))))
        assert group <= closed
        assert is_convex(edges, size, closed)
        if expected:
            graph.join(mask_of(group))
            joined.append(mask_of(group))
            edges |= {(a, b) for a, b in itertools.permutations(group, 2)}  # one node from now on
    order = graph.order(joined)
    assert sorted(n for group in order for n in bits(group)) == list(range(size))
    done: set[int] = set()
    for group in order:
        members = set(bits(group))
        assert all(p in done | members for n in members for p in producers[n])
        done |= members


def test_lists_are_looked_through_and_cloned() -> None:
    module = parsed(
        f"""func.func @f(%x: {V}) -> !torch.vtensor<[8],f32> {{
          %0 = torch.aten.relu %x : {V} -> {V}
          %l = torch.prim.ListConstruct %0, %x : ({V}, {V}) -> !torch.list<vtensor>
          %z = torch.constant.int 0
          %1 = torch.aten.cat %l, %z : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[8],f32>
          return %1 : !torch.vtensor<[8],f32>
        }}"""
    )
    graph = FunctionGraph(next(functions(module)), max_literal=1)
    assert [node.name for node in graph.nodes] == ["torch.aten.relu", "torch.aten.cat"]
    assert graph.nodes[1].producers == {0}
    assert len(graph.captures(0b10)) == 2
    assert [op.name for op in graph.helpers(0b10)] == ["torch.prim.ListConstruct", "torch.constant.int"]
    assert graph.captures(0b11) == [next(iter(graph.block.arguments))]


def test_small_and_uniform_literals_are_constants_and_others_values() -> None:
    module = parsed(
        f"""func.func @f(%x: {V}) -> {V} {{
          %one = torch.constant.int 1
          %a = torch.vtensor.literal(dense<2.0> : tensor<4xf32>) : {V}
          %b = torch.vtensor.literal(dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>) : {V}
          %0 = torch.aten.add.Tensor %x, %a, %one : {V}, {V}, !torch.int -> {V}
          %1 = torch.aten.add.Tensor %0, %b, %one : {V}, {V}, !torch.int -> {V}
          return %1 : {V}
        }}"""
    )
    function = next(functions(module))
    assert len(FunctionGraph(function, max_literal=1).captures(0b11)) == 2
    assert len(FunctionGraph(function, max_literal=4).captures(0b11)) == 1
