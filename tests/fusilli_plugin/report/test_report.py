"""Rows, pictures, page and trace of a small program made by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from fusilli_plugin.report import memory_svg, page, step_rows, trace
from fusilli_plugin.report.flow import flow_svg
from fusilli_plugin.report.memory import placed_lives
from fusilli_plugin.report.rows import best_times, edges
from fusilli_plugin.report.svg import bytes_text, time_text
from hipdnn_backend.offload.program import program as p
from hipdnn_backend.offload.program.runner import Timing, prepare
from tests.hipdnn_backend.fake_plans import GuardedMemory
from tests.hipdnn_backend.test_interpreter import W, X, plans, program

EVIL = "<script>alert('x')</script>&\"\x1b"

ABOUT: dict[str, Any] = {
    "graphs": {
        "add": {
            "engine": "FAKE_ENGINE", "nodes": ["n0"], "operations": ["torch.aten.add.Tensor", "torch.aten.relu"],
            "custom": False, "equal_to": "", "seconds": 1.5,
            "declined": {"OTHER": {"node": "n0", "rule": "dtype", "reason": "f32 only"}},
        },
        "relu": {"operations": ["torch.prims.collapse"], "custom": True, "equal_to": "add", "seconds": 0.0},
    },
    "dispatches": [2, None],
    "passes": [["hipdnn-offload", 0.25], ["cse", 0.5]],
    "seconds": {"import": 0.1},
    "refused": {"n1": {"": {"node": "", "rule": "translation", "reason": "no such operation"}}},
    "splits": [{"nodes": ["n2"], "engine": "FAKE_ENGINE", "reason": "too large", "action": "split into 1 and 2"}],
}  # fmt: skip


def svg(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def boxes(text: str) -> list[ElementTree.Element]:
    return [each for each in svg(text).iter("{http://www.w3.org/2000/svg}rect") if len(each)]


def test_rows_say_what_each_step_is() -> None:
    add, relu, copy = step_rows(program(), ABOUT, [1.0, 2.0, 3.0])
    assert (add.name, add.kind, add.engine, add.label) == ("add", "fusion", "FAKE_ENGINE", "add + relu")
    assert (add.dispatches, add.moved, add.workspace, add.compile_seconds) == (2, 72, 100, 1.5)
    assert add.declined == {"OTHER": "n0: f32 only [dtype]"}
    assert (relu.kind, relu.label, relu.equal_to, relu.dispatches) == ("custom", "collapse", "add", None)
    assert [row.title for row in (add, relu, copy)] == ["add", "relu (custom)", "copy y to z"]
    assert [replace(row, once=True).title for row in (add, relu)] == [
        "add (once, at load)",
        "relu (custom) (once, at load)",
    ]
    assert (copy.kind, copy.name, copy.engine, copy.moved, copy.seconds) == ("copy", "copy y to z", "", 48, 3.0)


def test_a_custom_operation_has_the_reasons_of_its_nodes() -> None:
    made = program()
    graphs = (made.graphs[0], replace(made.graphs[1], nodes=("n1",)))
    _, relu, _ = step_rows(replace(made, graphs=graphs), ABOUT)
    assert relu.declined == {"": "n1: no such operation [translation]"}


def test_rows_of_a_model_that_says_nothing() -> None:
    rows = step_rows(program(), {})
    assert [row.label for row in rows] == ["add", "relu", "copy"]
    assert {row.seconds for row in rows} == {None}


def test_edges_follow_the_memory() -> None:
    assert edges(program()) == [(-1, 0), (0, 1), (1, 2)]
    made = program()
    halves = replace(
        made,
        views=(*made.views, p.View(2, 3, (3,), (1,), "float32"), p.View(2, 0, (3,), (1,), "float32")),
        steps=(made.steps[0], p.Copy(6, 7), made.steps[1], p.Copy(7, 6)),
    )
    assert edges(halves) == [(-1, 0), (0, 2), (1, 3), (2, 3)]


def test_the_best_of_several_runs() -> None:
    runs = [[Timing(0, "a", 0, 2.0), Timing(1, "b", 2, 1.0)], [Timing(0, "a", 0, 1.5), Timing(1, "b", 2, 3.0)]]
    assert best_times(runs) == [1.5, 1.0]


def test_the_memory_picture_has_a_box_for_each_piece() -> None:
    made = program()
    found = placed_lives(made)
    assert [(life.need.name, scratch) for life, _, scratch in found] == [("t", False), ("workspace of add", True)]
    text = memory_svg(made)
    drawn = boxes(text)
    assert len(drawn) == 2
    hints = [each[0].text or "" for each in drawn]
    assert hints[0].startswith("t: 24 B at 128, steps 0 to 1")
    widths, heights = ([float(each.get(key, "0")) for each in drawn] for key in ("width", "height"))
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-3)  # two steps, one step
    assert heights[0] / heights[1] == pytest.approx(24 / 100, rel=0.02)
    assert "arena 152 B" in text
    assert "largest live set 124 B" in text


def test_the_flow_picture_has_a_box_for_each_step() -> None:
    made = program()
    text = flow_svg(made, step_rows(made, ABOUT, [1e-3, 2e-3, 1e-6]))
    assert len(boxes(text)) == 3
    assert "OTHER declined: n0: f32 only [dtype]" in text
    assert "2 ms" in text


def test_pictures_of_empty_programs() -> None:
    empty = p.Program("empty", (), (), (), (), (), (), ())
    svg(memory_svg(empty))
    svg(flow_svg(empty, []))
    assert "<h2>Model</h2>" in page("empty", "cpu", empty, [], {})


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.said += data


def test_the_page_has_everything_and_needs_nothing() -> None:
    made = program()
    text = page("model.onnx", "cpu", made, step_rows(made, ABOUT, [1e-3, 2e-3, 3e-3]), ABOUT)
    parsed = _Page()
    parsed.feed(text)
    assert parsed.tags.count("svg") == 2
    assert "script" not in parsed.tags
    assert not parsed.attributes & {"src", "href"}
    for words in (
        "model.onnx on cpu",
        "add + relu",
        "f32 only",
        "no such operation",
        "too large",
        "hipdnn-offload",
        "6 ms",
    ):
        assert words in text


def _everywhere(words: str) -> tuple[p.Program, dict[str, Any]]:
    """A program and what is said about it, with the same words in each place that is not ours."""
    made = program()
    graphs = tuple(replace(graph, name=f"{words}{n}", nodes=(words,)) for n, graph in enumerate(made.graphs))
    buffers = tuple(replace(buffer, name=words) for buffer in made.buffers)
    evil = replace(made, name=words, graphs=graphs, buffers=buffers, inputs=(p.Named(words, 0),))
    about = {
        "graphs": {graphs[0].name: {"operations": [words], "declined": {words: {"reason": words}}, "equal_to": words}},
        "refused": {words: {words: {"reason": words}}},
        "splits": [{"nodes": [words], "engine": words, "reason": words, "action": words}],
        "nodes": [{"node": words, "operator": words, "became": words, "words": words}],
        "passes": [[words, 1.0]],
        "seconds": {words: 1.0},
        "layout": words,
    }
    return evil, about


def _page_of(words: str) -> str:
    made, about = _everywhere(words)
    return page(words, words, made, step_rows(made, about), about)


@pytest.mark.parametrize("words", [EVIL, "{{ 7 * 7 }}{% raw %}", "</title></style></svg>", "' onclick='x'", "\ud800"])
def test_names_cannot_put_anything_into_the_page(words: str) -> None:
    text = _page_of(words)
    parsed, harmless = _Page(), _Page()
    parsed.feed(text)
    harmless.feed(_page_of("harmless"))
    assert (parsed.tags, parsed.attributes) == (harmless.tags, harmless.attributes)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\ud800]", text)
    shown = "".join(c if c.isprintable() else "\ufffd" for c in words)
    assert parsed.said.count(shown) == harmless.said.count("harmless") >= 20
    made, about = _everywhere(words)
    svg(memory_svg(made))
    svg(flow_svg(made, step_rows(made, about)))


def test_the_trace_has_passes_and_runs_one_after_the_other() -> None:
    made = program()
    prepared = prepare(made, plans(), GuardedMemory(), {"w": W})
    runs = [prepared.profile({"x": X}) for _ in range(2)]
    document = json.loads(json.dumps(trace("m", ABOUT, step_rows(made, ABOUT, best_times(runs)), runs)))
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in spans] == [
        "hipdnn-offload", "cse", "run 0", "add", "relu", "copy y to z", "run 1", "add", "relu", "copy y to z",
    ]  # fmt: skip
    assert spans[2]["ts"] == pytest.approx(0.75e6)
    for run, *steps in (spans[2:6], spans[6:]):
        for step in steps:
            assert run["ts"] <= step["ts"]
            assert step["ts"] + step["dur"] <= run["ts"] + run["dur"] + 1e-3
    assert spans[3]["args"]["engine"] == "FAKE_ENGINE"


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3 MiB"), (5 << 30, "5 GiB")]
)
def test_bytes_in_words(count: int, words: str) -> None:
    assert bytes_text(count) == words


def test_times_in_words() -> None:
    assert [time_text(seconds) for seconds in (2e-6, 3.5e-3, 12)] == ["2 µs", "3.5 ms", "12 s"]
