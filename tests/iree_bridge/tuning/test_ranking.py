"""Forms for AMD chips are ordered by their code where no device is: only what was executed in the emulator may win."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fusilli_plugin.cli.main import cli
from graph_api import CompileError, DataType, Graph, PointwiseMode
from iree_bridge import Options, Target, compile_graph
from iree_bridge.compile import tuned
from iree_bridge.compile.assembly import Dispatch
from iree_bridge.compile.compiler import cache_for, compile_code
from iree_bridge.compile.inspect import Inspection
from iree_bridge.compile.options import TuneMode
from iree_bridge.compile.tuned import BY_CODE, RIGHT, Figure, Record
from iree_bridge.static.chips import chip_of
from iree_bridge.static.figures import Figures
from iree_bridge.targets.variants import Variant, variants
from iree_bridge.tuning import rank, ranking

GFX942 = Target.parse("gfx942")
MFMA = {"v_mfma_f32_16x16x16_f16": 4}


def product(dtype: DataType = DataType.HALF) -> Graph:
    g = Graph("product", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    g.matmul(g.tensor("a", dim=(256, 128)), g.tensor("b", dim=(128, 256))).set_output(True)
    return g.validate()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options.from_env(cache_dir=tmp_path / "cache")


def read(seconds: float | None, *, matrix: dict[str, int] | None = None, spills: int = 0) -> Figures:
    values = dict.fromkeys(("vgprs", "agprs", "sgprs", "sgpr_spills", "lds", "scratch", "scratch_instructions"), 0)
    loop = MFMA if matrix is None else matrix
    kernel = Dispatch(name="k", vgpr_spills=spills, workgroup=64, wavefront=64, matrix=loop, loop=loop, **values)
    found = Figures(
        GFX942, "form", chip_of(GFX942), Inspection(GFX942, 1, (kernel,)), (), 1, 1, 1, 1.0, is_compute_bound=True
    )
    return found if seconds is None else replace(found, computing=seconds, moving=0.0)


@pytest.mark.parametrize(
    ("found", "verdict", "text"),
    [
        (read(1.0), RIGHT, ""),
        (read(1.0, matrix={}), "not tried", "no matrix instructions"),
        (read(1.0, spills=2), "not tried", "2 registers"),
        (read(None), "not tried", "nothing is known of the chip"),
    ],
)
def test_what_figures_weigh_badly_is_not_tried(found: Figures, verdict: str, text: str) -> None:
    judged = ranking._judged(Variant("form"), found, read(2.0))
    assert judged.verdict == verdict
    assert text in judged.text


def test_a_form_wins_if_it_is_better_by_far() -> None:
    def best(*seconds: float) -> str:
        return ranking._best([Figure(f"form {number}", RIGHT, each) for number, each in enumerate(seconds)])

    assert best(2.0, 1.7, 1.79) == "form 1"
    assert best(2.0, 1.81) == "form 0"
    assert best(0.0, 1.0) == "form 0"  # nothing is known of the default
    assert ranking._best([Figure("default", RIGHT, 2.0), Figure("spills", "not tried", 0.1)]) == "default"


@pytest.mark.mlir
def test_only_what_was_executed_is_compiled_and_the_winner_serves(options: Options) -> None:
    graph = product()
    record = rank(graph, GFX942, options)
    by_name = {figure.form: figure for figure in record.figures}
    assert [*by_name] == [form.name for form in variants(graph, GFX942)]
    assert (record.place, record.target) == (BY_CODE, "gfx942")
    for name, figure in by_name.items():
        executed = name in ("plain", "no product tiles")
        assert (figure.verdict == RIGHT) == executed, figure
        assert ("not executed in the emulator" in figure.text) != executed
        assert (figure.seconds > 0) == executed
    assert record.winner in ("plain", "no product tiles")
    assert compile_code(graph, GFX942, options).form == record.winner
    assert compile_code(graph, GFX942, replace(options, tune=TuneMode.OFF)).form == "plain"
    kept = tuned.records(cache_for(options), record.key)
    compile_graph(
        graph, [GFX942], options=replace(options, tune=TuneMode.MEASURE)
    )  # it is known: nothing is ranked anew
    assert tuned.records(cache_for(options), record.key) == kept == [record]


def claim(graph: Graph, winner: str, place: str) -> Record:
    key = tuned.key_for(graph, GFX942)
    return Record(key, graph.name, "gfx942", place, winner, (Figure(winner, RIGHT, 1e-9),))


def test_a_file_cannot_have_an_unexecuted_form_served(options: Options) -> None:
    graph, store = product(), cache_for(options)
    tuned.keep(store, claim(graph, "loops", BY_CODE))
    assert tuned.winner(store, graph, GFX942) is None
    tuned.keep(store, claim(graph, "no product tiles", BY_CODE))
    found = tuned.winner(store, graph, GFX942)
    assert found is not None
    assert found.name == "no product tiles"
    wide = product(DataType.FLOAT)  # of no class that was executed
    tuned.keep(store, claim(wide, "no product tiles", BY_CODE))
    assert tuned.winner(store, wide, GFX942) is None


def test_what_a_device_has_measured_counts_first(options: Options) -> None:
    graph, store = product(), cache_for(options)
    tuned.keep(store, claim(graph, "plain", "hip gfx942 on another machine"))
    tuned.keep(store, claim(graph, "no product tiles", BY_CODE))
    found = tuned.winner(store, graph, GFX942)
    assert found is not None
    assert found.name == "plain"


def test_other_targets_are_not_ranked(options: Options) -> None:
    with pytest.raises(CompileError, match="name a gfx target"):
        rank(product(DataType.FLOAT), Target.parse("cpu"), options)


@pytest.mark.mlir
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSILLI_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "graph.json"
    g = Graph("add", io_data_type=DataType.HALF)
    g.pointwise(PointwiseMode.ADD, g.tensor("x", dim=(8, 8)), g.tensor("y", dim=(8, 8))).set_output(True)
    file.write_text(g.to_json())
    done = CliRunner().invoke(cli, ["tune", str(file), "--target", "gfx942", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["targets"] == ["gfx942"]
    (row,) = document["graphs"]
    assert (row["winner"], row["target"]) == ("plain", "gfx942")
    assert row["default_ms"] > 0
    refused = CliRunner().invoke(cli, ["tune", str(file), "--target", "gfx942", "--device", "cpu"])
    assert refused.exit_code == 2
    assert "a --target that no device is at hand for" in refused.output
