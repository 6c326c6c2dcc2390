"""hipDNN's rules for the choice of an engine. Expectations are written down by hand from its documentation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hipdnn_backend.engine import engine_id
from hipdnn_backend.host.selection import CONFIG, STATIC, Policies, read_rules, select
from hipdnn_backend.wire import decode_graph
from tests.hipdnn_backend.toys import CONV, GRAPHS, RELU, ToyEngine

GRAPH = decode_graph(CONV)  # x 1x2x4x4, w 3x2x3x3, both row-major; conv, add, relu


def engines(*names: str) -> list[ToyEngine]:
    return [ToyEngine(name) for name in names]


def ids(*names: str) -> tuple[int, ...]:
    return tuple(map(engine_id, names))


@pytest.mark.parametrize(
    ("loaded", "ordered"),
    [
        (("A", "B"), ("A", "B")),
        (("B", "A"), ("B", "A")),
        (("A", "MIOPEN_ENGINE"), ("MIOPEN_ENGINE", "A")),
        (
            ("MIOPEN_ENGINE_DETERMINISTIC", "B", "ROCKE_ENGINE", "A", "ASM_SDPA_ENGINE", "MIOPEN_ENGINE"),
            ("MIOPEN_ENGINE", "ASM_SDPA_ENGINE", "ROCKE_ENGINE", "B", "A", "MIOPEN_ENGINE_DETERMINISTIC"),
        ),
    ],
)
def test_the_static_order(loaded: tuple[str, ...], ordered: tuple[str, ...]) -> None:
    found = select(GRAPH, engines(*loaded), policies=Policies())
    assert (found.ids, found.policy, found.notes) == (ids(*ordered), STATIC, ())


def test_one_engine_and_none() -> None:
    assert select(GRAPH, engines("A"), policies=Policies()).reason == "no other engine runs the graph"
    found = select(GRAPH, [], preferred=engine_id("A"), policies=Policies())
    assert (found.ids, found.reason) == ((), "no engine runs the graph")


def test_a_preferred_engine_goes_first() -> None:
    loaded = engines("MIOPEN_ENGINE", "A", "B")
    names: dict[int, str] = {engine.id: engine.name for engine in loaded}
    found = select(GRAPH, loaded, preferred=engine_id("B"), policies=Policies(), names=names)
    assert (found.ids, found.policy, found.reason) == (
        ids("B", "MIOPEN_ENGINE", "A"),
        "preferred",
        "B is the preferred engine",
    )


def test_a_preferred_engine_that_declines_is_passed_over_with_a_note() -> None:
    found = select(GRAPH, engines("A"), preferred=engine_id("MIOPEN_ENGINE"), policies=Policies())
    assert found.ids == ids("A")
    assert found.notes == ("the preferred engine MIOPEN_ENGINE is not among the engines that may run the graph",)


def test_the_graphs_own_wish_counts_unless_the_caller_has_one() -> None:
    graph = GRAPH.replace(preferred_engine_id=engine_id("B"))
    assert select(graph, engines("A", "B"), policies=Policies()).ids == ids("B", "A")
    assert select(graph, engines("A", "B"), preferred=engine_id("A"), policies=Policies()).ids == ids("A", "B")


def test_the_fallback_order_leaves_out_what_it_does_not_name() -> None:
    policies = Policies.from_env({"HIPDNN_HEUR_FALLBACK_ENGINE_ORDER": f" B, ,C,{engine_id('A')}"})
    found = select(GRAPH, engines("MIOPEN_ENGINE", "A", "B"), policies=policies)
    assert found.ids == ids("B", "A")
    # a wish cannot bring back what the order left out
    wish = engine_id("MIOPEN_ENGINE")
    assert select(GRAPH, engines("MIOPEN_ENGINE", "A", "B"), preferred=wish, policies=policies).ids == ids("B", "A")


def test_a_fallback_order_of_others_chooses_nobody() -> None:
    policies = Policies.from_env({"HIPDNN_HEUR_FALLBACK_ENGINE_ORDER": "MIOPEN_ENGINE"})
    found = select(GRAPH, engines("A"), policies=policies)
    assert (found.ids, found.reason) == ((), "no policy chose an engine")
    assert found.notes == ("HIPDNN_HEUR_FALLBACK_ENGINE_ORDER names none that runs the graph: MIOPEN_ENGINE",)


def test_policies_by_name_by_id_and_unknown_ones() -> None:
    policies = Policies.from_env({"HIPDNN_HEUR_POLICY_ORDER": f"SelectionHeuristic::ModeA,{engine_id(STATIC)}"})
    assert policies.order == ("SelectionHeuristic::ModeA", STATIC)
    found = select(GRAPH, engines("A"), policies=policies)
    assert (found.ids, found.notes) == (ids("A"), ("policy SelectionHeuristic::ModeA is not known here",))


def test_the_environment_counts_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPDNN_HEUR_FALLBACK_ENGINE_ORDER", "B")
    assert select(GRAPH, engines("A", "B")).ids == ids("B")


# ---- rules

X, W = {"dim": [1, 2, 4, 4]}, {"dim": [3, 2, 3, 3]}


def by_rules(tmp_path: Path, *rules: dict[str, Any], graph: bytes = CONV, version: int = 1, **more: Any) -> Any:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"version": version, "engine_overrides": list(rules)} | more))
    return select(decode_graph(graph), engines("MIOPEN_ENGINE", "A", "B"), policies=Policies(rules=path))


def rule(op: str, engine: str, *tensors: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"op": op, "engine_name": engine, "tensors": list(tensors)} | more


def test_a_rule_that_fits_puts_its_engine_first(tmp_path: Path) -> None:
    found = by_rules(tmp_path, rule("conv_fprop", "B", X, W))
    assert (found.ids, found.policy) == (ids("B", "MIOPEN_ENGINE", "A"), CONFIG)
    assert found.reason == f"a rule of {tmp_path / 'rules.json'} wants B for conv_fprop"


@pytest.mark.parametrize(
    ("tensors", "fits"),
    [
        ([{"dim": [-1, 2, -1, -1]}, {"dim": [-1, -1, 3, 3]}], True),
        ([{"dim": [1, 2, 4, 4], "stride": [32, 16, 4, 1]}, W], True),
        ([{"dim": [1, 2, 4, 4], "stride": [-1, -1, -1, 1]}, W], True),
        ([{"dim": [1, 2, 4, 4], "stride": [32, 1, 8, 2]}, W], False),
        ([{"dim": [1, 2, 4, 5]}, W], False),
        ([{"dim": [1, 2, 4]}, W], False),
        ([X], False),
        ([X, W, W], False),
        ([W, X], False),
    ],
)
def test_dims_and_strides_of_rules(tmp_path: Path, tensors: list[dict[str, Any]], fits: bool) -> None:
    found = by_rules(tmp_path, rule("conv_fprop", "B", *tensors))
    assert (found.policy == CONFIG) is fits
    assert fits or found.notes == (f"no rule of {tmp_path / 'rules.json'} fits the graph",)


def test_the_first_rule_that_fits_counts(tmp_path: Path) -> None:
    rules = [rule("conv_dgrad", "A", X, W), rule("conv_fprop", "A", X, W), rule("conv_fprop", "B", X, W)]
    assert by_rules(tmp_path, *rules).ids[0] == engine_id("A")


def test_a_graph_is_looked_up_by_its_weightiest_operation(tmp_path: Path) -> None:
    add = rule("pointwise", "B", {"dim": [1, 3, 4, 4]}, {"dim": [1, 3, 1, 1]}, criteria={"pointwise_mode": 2})
    assert by_rules(tmp_path, add).policy == STATIC  # the graph has a convolution
    alone = rule("pointwise", "B", {"dim": [1, 2, 4, 4]}, criteria={"pointwise_mode": 34})
    assert by_rules(tmp_path, alone, graph=RELU).policy == CONFIG
    for criteria in ({"pointwise_mode": 2}, {}, {"pointwise_mode": 34, "more": 1}):
        other = rule("pointwise", "B", {"dim": [1, 2, 4, 4]}, criteria=criteria)
        assert by_rules(tmp_path, other, graph=RELU).policy == STATIC


def test_the_second_version_names_its_tensors(tmp_path: Path) -> None:
    x, w = X | {"tensor_id": "x_tensor_uid"}, W | {"tensor_id": "w_tensor_uid"}
    assert by_rules(tmp_path, rule("conv_fprop", "B", w, x), version=2).policy == CONFIG
    assert by_rules(tmp_path, rule("conv_fprop", "B", x, x), version=2).policy == STATIC
    assert by_rules(tmp_path, rule("conv_fprop", "B", X, W), version=2).policy == STATIC


@pytest.mark.parametrize(
    ("graph", "op", "tensors"),
    [
        ("dgrad", "conv_dgrad", ("dy", "w")),
        ("wgrad", "conv_wgrad", ("x", "dy")),
        ("bn_inference", "batchnorm_inference", ("x", "mean", "inv_variance", "scale", "bias")),
    ],
)
def test_operations(tmp_path: Path, graph: str, op: str, tensors: tuple[str, ...]) -> None:
    data = (GRAPHS / f"{graph}.bin").read_bytes()
    attributes = decode_graph(data).nodes[0].attributes
    dims = [list(decode_graph(data).tensor(getattr(attributes, f"{name}_tensor_uid")).dims) for name in tensors]
    assert by_rules(tmp_path, rule(op, "B", *({"dim": dim} for dim in dims)), graph=data).policy == CONFIG


def test_a_rule_for_an_engine_that_declines(tmp_path: Path) -> None:
    found = by_rules(tmp_path, rule("conv_fprop", "C", X, W))
    assert found.policy == STATIC
    assert found.notes == (f"a rule of {tmp_path / 'rules.json'} wants C, which does not run the graph",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Expecting property name"),
        ("[]", "has no attribute 'get'"),
        ("{}", "the rules lack 'engine_overrides'"),
        ('{"engine_overrides": 7}', "engine_overrides is no list: 7"),
        ('{"engine_overrides": [7]}', "'int' object"),
        ('{"engine_overrides": [{"op": "conv_fprop", "engine_name": "A"}]}', "the rules lack 'tensors'"),
        ('{"engine_overrides": [{"op": 1, "engine_name": "A", "tensors": []}]}', "1 is no string"),
        ('{"engine_overrides": [{"op": "x", "engine_name": "A", "tensors": [{"dim": [1.5]}]}]}', "is no integer: 1.5"),
        ('{"engine_overrides": [{"op": "x", "engine_name": "A", "tensors": [], "criteria": []}]}', "'items'"),
        ('{"version": "2", "engine_overrides": []}', "version is no integer: '2'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_rules_are_passed_over_with_a_note(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "rules.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_rules(path)
    found = select(GRAPH, engines("A"), policies=Policies(rules=path))
    assert found.policy == STATIC
    assert found.notes[0].startswith(f"HIPDNN_HEUR_CONFIG_PATH: {path} cannot be used: ")


def test_a_pipe_holds_no_rules(tmp_path: Path) -> None:
    """Reading one may never end."""
    os.mkfifo(tmp_path / "rules.json")
    with pytest.raises(ValueError, match="is no file"):
        read_rules(tmp_path / "rules.json")


def test_missing_rules_are_passed_over_with_a_note(tmp_path: Path) -> None:
    policies = Policies.from_env({"HIPDNN_HEUR_CONFIG_PATH": str(tmp_path / "none.json")})
    assert "No such file" in select(GRAPH, engines("A"), policies=policies).notes[0]
