"""Models that carry compiled code: made with and without a session, loaded, refused when they do not fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

import fusilli_plugin
from fusilli_plugin.cli import cli
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.ort_ep import context, devices, offloading
from hipdnn_backend import offload
from iree_bridge import Device
from iree_bridge.compile import versions
from tests.fusilli_plugin.ort_ep.models import Model, conv_relu, reference, session, weight

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]


def two_groups() -> Model:
    model = Model("two_groups")
    w = model.constant("w", weight(0, 8, 8))
    first = model.add("Relu", model.add("MatMul", model.input("x", 4, 8), w))
    model.output(model.add("NonZero", first), dtype=np.int64)
    return model.output(model.add("MatMul", first, w))


def make(model: Model, folder: Path, *, embed: bool, prefix: str = "", **options: str) -> Path:
    source, made = folder / "model.onnx", folder / "compiled.onnx"
    source.write_bytes(model.data())
    settings = ort.SessionOptions()
    settings.add_session_config_entry("ep.context_enable", "1")
    settings.add_session_config_entry("ep.context_file_path", str(made))
    settings.add_session_config_entry("ep.context_embed_mode", "1" if embed else "0")
    settings.add_session_config_entry("ep.context_node_name_prefix", prefix)
    settings.add_provider_for_devices(fusilli_plugin.ep_devices("cpu"), options)
    ort.InferenceSession(str(source), settings)
    return made


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(offloading, "_compile", refuse)
    monkeypatch.setattr(offloading, "survey", refuse)


@pytest.mark.a_few("False")
@pytest.mark.parametrize("embed", [True, False])
def test_a_session_makes_a_model_that_a_later_one_runs(
    tmp_path: Path, embed: bool, request: pytest.FixtureRequest
) -> None:
    model = two_groups()
    made = make(model, tmp_path, embed=embed)
    holders = [node for node in onnx.load(made).graph.node if node.op_type == "EPContext"]
    assert holders
    assert len(list(tmp_path.glob("*.fusilli"))) == (0 if embed else len(holders))
    request.getfixturevalue("no_compiler")
    later = session(str(made))
    feeds = model.feeds()
    for ours, theirs in zip(later.run(None, feeds), reference(model, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert fusilli_plugin.ep_report(later).claimed == len(holders)


def test_the_code_is_looked_for_inside_the_models_folder_only(tmp_path: Path) -> None:
    made = make(conv_relu(), tmp_path, embed=False)
    (code,) = tmp_path.glob("*.fusilli")
    model = onnx.load(made)
    (holder,) = [node for node in model.graph.node if node.op_type == "EPContext"]
    (tmp_path / "inner").mkdir()
    shutil.copy(code, tmp_path / "outside")
    (where,) = [attribute for attribute in holder.attribute if attribute.name == "ep_cache_context"]
    for name in ("../outside", str(tmp_path / "outside")):
        where.s = name.encode()
        onnx.save(model, str(tmp_path / "inner" / "model.onnx"))
        with pytest.raises(Exception, match="not inside the model's folder"):
            session(str(tmp_path / "inner" / "model.onnx"))
    with pytest.raises(Exception, match="not loaded from a file|not inside"):
        session(onnx.load(made).SerializeToString())


def test_the_code_is_written_into_the_models_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    made = make(conv_relu(), folder, embed=False, prefix="../outside/")
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert len(list(folder.glob("*.fusilli"))) == 1
    feeds = conv_relu().feeds()
    got = session(str(made)).run(None, feeds)[0]
    np.testing.assert_allclose(got, reference(conv_relu(), feeds)[0], rtol=1e-5, atol=1e-6)


def test_code_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(conv_relu(), tmp_path, embed=True)
    here = versions.iree_version()
    monkeypatch.setattr(versions, "iree_version", lambda: "99.1.0")
    with pytest.raises(Exception, match=f"made by IREE {here}, this is 99.1.0; build it again"):
        session(str(made))


def test_onnx_runtime_is_told_whether_code_can_be_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device.parse("cpu")
    text = devices.compatibility_text(device)
    assert str(device.target) in text
    assert devices.compatibility(text) is devices.Compatibility.OPTIMAL
    assert devices.compatibility(text.replace(str(device.target), "gfx942")) is devices.Compatibility.UNSUPPORTED
    assert devices.compatibility("another provider's") is devices.Compatibility.NOT_APPLICABLE
    monkeypatch.setattr(versions, "iree_version", lambda: "99.1.0")
    assert devices.compatibility(text) is devices.Compatibility.UNSUPPORTED


def test_damaged_code_is_refused(tmp_path: Path) -> None:
    made = make(conv_relu(), tmp_path, embed=False)
    (code,) = tmp_path.glob("*.fusilli")
    whole = code.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:]):
        code.write_bytes(damaged)
        with pytest.raises(Exception, match="EPContext node"):
            session(str(made))


def test_code_for_another_target_is_refused(tmp_path: Path) -> None:
    model = conv_relu()
    _, variants = offload.compile_model(
        model.proto(), {"cpu": (FusilliEngine("cpu"),)}
    )  # fmt: skip
    renamed = [type(variant)("gfx942", variant.program, variant.plans, variant.constants) for variant in variants]
    context.save_model(tmp_path / "gpu.onnx", model.proto(), "conv", renamed)
    with pytest.raises(Exception, match="not compiled for cpu.*gfx942"):
        session(str(tmp_path / "gpu.onnx"))


def test_a_model_is_made_without_a_session(tmp_path: Path) -> None:
    model = conv_relu()
    name, variants = offload.compile_model(model.proto(), {"cpu": (FusilliEngine("cpu"),)})
    for embed in (True, False):
        path = tmp_path / f"{embed}.onnx"
        context.save_model(path, model.proto(), name, variants, embed=embed)
        feeds = model.feeds()
        np.testing.assert_allclose(
            session(str(path), strict="1").run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-5, atol=1e-6
        )


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    model = conv_relu()
    name, variants = offload.compile_model(model.proto(), {"cpu": (FusilliEngine("cpu"),)})
    link = tmp_path / "nothing.onnx"
    link.symlink_to(os.devnull)
    context.save_model(link, model.proto(), name, variants, embed=True)
    assert link.is_char_device()
    assert [path.name for path in tmp_path.iterdir()] == ["nothing.onnx"]


def test_dims_that_are_not_known_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="add_free_dimension_override_by_name"):
        make(conv_relu(batch="n"), tmp_path, embed=True)


def test_the_command_line_makes_one_for_several_targets(tmp_path: Path) -> None:
    model = conv_relu()
    source, made = tmp_path / "model.onnx", tmp_path / "compiled.onnx"
    source.write_bytes(model.data())
    done = CliRunner().invoke(cli, ["compile", str(source), "--target", "gfx942,cpu", "--ep-context", str(made)])
    assert done.exit_code == 0, done.output
    feeds = model.feeds()
    np.testing.assert_allclose(
        session(str(made), strict="1").run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-5, atol=1e-6
    )
    neither = CliRunner().invoke(cli, ["compile", str(source), "--target", "cpu"])
    assert neither.exit_code == 2
    assert "--ep-context" in neither.output


# ---- several sizes


def joined() -> Model:
    """softmax(x · w + y): the rows may be padded; the second input comes first in the nodes."""
    model = Model("joined")
    x, y = model.input("x", "n", 8), model.input("y", "n", 4)
    h = model.add("MatMul", x, model.constant("w", weight(0, 8, 4)))
    return model.output(model.add("Softmax", model.add("Add", model.add("Tanh", y), h), axis=1))


def served(made: Any, sizes: tuple[int, ...]) -> None:
    model = joined()
    for size in sizes:
        feeds = model.feeds(size, {"n": size})
        for ours, theirs in zip(made.run(None, feeds), reference(model, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.a_few("False")
@pytest.mark.parametrize("embed", [True, False])
def test_a_session_makes_a_model_for_several_sizes(tmp_path: Path, embed: bool, request: pytest.FixtureRequest) -> None:
    made = make(joined(), tmp_path, embed=embed, shapes="n=2,5")
    request.getfixturevalue("no_compiler")
    later = session(str(made))
    served(later, (1, 2, 3, 4, 5))
    (padding,) = fusilli_plugin.ep_report(later).padding.values()
    assert padding == {"n": ""}
    with pytest.raises(Exception, match=r"its inputs are .*y \[6, 4\].*it was compiled for .*y \[2, 4\]"):
        later.run(None, joined().feeds(0, {"n": 6}))
    with pytest.raises(Exception, match=r"dim 0 is 6, a shape without code|dim 0 \('n'\) is 6, a shape without code"):
        session(str(made), on_new_shape="error").run(None, joined().feeds(0, {"n": 6}))


@pytest.mark.thorough
def test_the_command_makes_a_model_for_several_sizes(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, made = tmp_path / "model.onnx", tmp_path / "compiled.onnx"
    source.write_bytes(joined().data())
    arguments = ["compile", str(source), "--target", "cpu", "--shapes", "n=2,5", "--ep-context", str(made)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    request.getfixturevalue("no_compiler")
    served(session(str(made)), (1, 2, 3, 4, 5))


def test_open_dims_without_sizes_make_no_model(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="known at run time only; name their sizes with option shapes"):
        make(joined(), tmp_path, embed=True)
