"""Saved models: several targets in one file, and damage of every kind."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import stat
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.engine import Engine
from hipdnn_backend.offload import load
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.program.package import (
    Package,
    PackageError,
    SavedPlan,
    TargetProgram,
    _Blobs,
    is_package,
    save_package,
)
from hipdnn_backend.offload.program.program import Program, placed
from hipdnn_backend.offload.program.runner import InputError
from tests.hipdnn_backend.fake_plans import FakeEngine
from tests.hipdnn_backend.test_interpreter import W, X, Y, plans, program


def variant(target: str = "cpu", *, scale: int = 1) -> TargetProgram:
    saved = tuple(SavedPlan("FAKE_ENGINE", plan.serialize()) for plan in plans())
    return TargetProgram(target, program(), saved, {"w": W * scale}, {"target": target})


@dataclass
class Portable(FakeEngine):
    """A fake engine that says what it compiles for."""

    def for_device(self, device: str) -> Engine:
        return self

    def for_target(self, target: str) -> Engine:
        return replace(self, target=target)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "two.fusilli"
    save_package(path, "two", [variant("cpu"), variant("gfx942", scale=2)])
    return path


def test_what_is_saved_is_read(saved: Path) -> None:
    assert is_package(saved.read_bytes()[:4])
    package = Package.open(saved)
    assert (package.name, package.targets) == ("two", ("cpu", "gfx942"))
    for target, scale in (("cpu", 1), ("gfx942", 2)):
        found, expected = package.variant(target), variant(target, scale=scale)
        assert (found.program, found.plans, found.about) == (expected.program, expected.plans, expected.about)
        np.testing.assert_array_equal(found.constants["w"], W * scale)


def test_equal_models_give_equal_files_and_share_what_is_equal(saved: Path, tmp_path: Path) -> None:
    save_package(tmp_path / "again", "two", [variant("cpu"), variant("gfx942", scale=2)])
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        names = archive.namelist()
    assert names[0] == "manifest.json"
    assert len(names) == 1 + 2 + 2  # two plans, which both targets share, and two weights


def test_the_engine_decides_which_variant_is_loaded(saved: Path) -> None:
    with load(saved, device="cpu", engines=[Portable()]) as model:
        assert (model.target, model.name) == ("cpu", "two")
        np.testing.assert_array_equal(model.run({"x": X})["y"], Y)
        assert [(t.name, t.dims, t.dtype.name) for t in model.inputs] == [("x", (2, 3), "float32")]
        assert [t.name for t in model.outputs] == ["y", "z"]
    with load(saved, device="cpu", engines=[Portable(target="gfx942")]) as model:
        np.testing.assert_array_equal(model.run({"x": X})["y"], np.maximum(X + 2 * W, 0))
    with load(saved, device="cpu", engines=[FakeEngine()]) as model:  # does not say; the device does
        assert model.target == "cpu"


def test_a_restored_model_is_saved_again(saved: Path, tmp_path: Path) -> None:
    with load(saved, device="cpu", engines=[Portable()]) as model:
        model.save(tmp_path / "again")
    again = Package.open(tmp_path / "again")
    assert again.targets == ("cpu",)
    assert again.variant("cpu").program == program()


def test_a_target_that_is_not_inside(saved: Path) -> None:
    with pytest.raises(PackageError, match="'two' is not compiled for gfx90a, .* it has code for cpu, gfx942"):
        load(saved, device="cpu", engines=[Portable(target="gfx90a")])
    with pytest.raises(PackageError, match="not compiled for sm_80; it has code for cpu, gfx942"):
        Package.open(saved).variant("sm_80")


def test_an_engine_that_is_not_here(saved: Path) -> None:
    with pytest.raises(PackageError, match="plan 0 is of engine FAKE_ENGINE, which is not here; there are: OTHER"):
        load(saved, device="cpu", engines=[Portable(name="OTHER")])


def test_no_engine_at_all(saved: Path) -> None:
    with pytest.raises(PackageError, match="no engine is here that restores the plans of model 'two'"):
        load(saved, device="cpu", engines=[])


def test_the_cpu_has_no_streams(saved: Path) -> None:
    with pytest.raises(ModelError, match="device 'cpu' has no stream 0; leave it out"):
        load(saved, device="cpu", engines=[Portable()], stream=0)


def test_dims_are_for_models_that_are_not_compiled_yet(saved: Path) -> None:
    with pytest.raises(PackageError, match="has its dims"):
        load(saved, device="cpu", engines=[Portable()], dims={"n": 1})


def test_an_unknown_device(saved: Path) -> None:
    for device in ("abacus", "hip:x", "hip:99999", "cpu:1", ""):
        with pytest.raises(ModelError, match="is none that models run on"):
            load(saved, device=device, engines=[Portable()])


def test_two_variants_for_one_target(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="two variants for one target"):
        save_package(tmp_path / "m", "m", [variant(), variant()])
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match=f"No space left on device: '{saved}'"):
        save_package(saved, "two", [variant()])
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    save_package(pipe, "two", [variant()])
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "file").write_bytes(received[0])
    assert Package.open(tmp_path / "file").variant(variant().target).program == variant().program


# ---- damage


def test_other_files_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("PK\x03\x04 and so on")
    with pytest.raises(PackageError, match="no saved model"):
        Package.open(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(PackageError, match=r"there is no manifest\.json in it"):
        Package.open(tmp_path / "zip")
    with zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * (1 << 20))
    with pytest.raises(PackageError, match=r"manifest\.json is compressed"):
        Package.open(tmp_path / "bomb")


def test_a_model_that_was_cut_is_damaged(tmp_path: Path) -> None:
    """Plans are archives: a file may end with the end of one, which is not that of the model."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": "of another"}))
    path = tmp_path / "model"
    made = variant()
    plans = (replace(made.plans[0], payload=inner.getvalue()), *made.plans[1:])
    save_package(path, "m", [replace(made, plans=plans)])
    data = path.read_bytes()
    assert Package.open(path).name == "m"
    inside = data.index(inner.getvalue()) + len(inner.getvalue())
    for size in (8, 40, inside - 1, inside, inside + 40, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(PackageError, match="no saved model, or a damaged one"):
            Package.open(path)


Edit = Callable[[dict[str, Any]], None]


def edited(path: Path, edit: Edit) -> Path:
    """A copy of a saved model with another manifest."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    edit(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    out = path.with_suffix(".edited")
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(format="other"), "is no saved model"),
        (lambda m: m.update(version=3), "version 3 of a saved model is unknown, this reads up to 2"),
        (lambda m: m.update(variants=[]), "no variants"),
        (lambda m: m.update(variants=[{}]), "a variant has no target"),
        (lambda m: m["variants"][0].pop("program"), "damaged: manifest.json, target cpu: KeyError: 'program'"),
        (lambda m: m["variants"][0]["program"].update(arena=1), "damaged: manifest.json, target cpu: the memory plan"),
        (lambda m: m["variants"][0]["program"].update(version=7), "version 7 of a program"),
        (lambda m: m["variants"][0].update(plans=[]), "needs 2 plans, the file has 0"),
        (lambda m: m["variants"][0]["plans"].append(m["variants"][0]["plans"][0]), "needs 2 plans, the file has 3"),
        (lambda m: m["variants"][0]["constants"].extend(m["variants"][0]["constants"]), "'w' is there twice"),
        (lambda m: m["variants"][0].update(plans=[["A", 5]] * 2), "TypeError: 5 is no string"),
        (lambda m: m["variants"][0]["plans"][0].reverse(), "there is no blobs/FAKE_ENGINE in it"),
        (lambda m: m["variants"][0].update(constants=[]), r"constants are missing: \['w'\]"),
        (lambda m: m["variants"][0]["constants"][0].__setitem__(1, "int8"), "is not what the program has"),
        (lambda m: m["variants"][0]["constants"][0].__setitem__(3, m["variants"][0]["plans"][0][1]), "has .* bytes"),
    ],
)
def test_damaged_manifests(saved: Path, edit: Edit, message: str) -> None:
    path = edited(saved, edit)
    with pytest.raises(PackageError, match=message):
        Package.open(path).variant("cpu")


def test_what_is_shared_is_read_once(tmp_path: Path) -> None:
    path, made = tmp_path / "m", variant()
    save_package(path, "m", [replace(made, plans=(made.plans[0], made.plans[0]))])
    first, second = Package.open(path).variant("cpu").plans
    assert first.payload is second.payload


def many_plans(count: int) -> Program:
    """A program of as many graphs, each with a plan of its own."""
    made = program()
    more = range(2, count)
    graphs = [replace(made.graphs[0], name=f"g{i}", plan=i) for i in more]
    steps = [replace(made.steps[0], graph=i) for i in more]
    return placed(replace(made, graphs=(*made.graphs, *graphs), steps=(*steps, *made.steps)))


def test_a_small_file_does_not_become_large(tmp_path: Path) -> None:
    """3,000 plans that name one blob of a MiB took 3 GiB."""
    path, made = tmp_path / "m", variant()
    blob = SavedPlan("FAKE_ENGINE", bytes(1 << 20))
    save_package(path, "m", [replace(made, program=many_plans(3000), plans=(blob,) * 3000)])
    assert path.stat().st_size < 4 << 20
    with pytest.raises(PackageError, match="plans and constants are much larger than the file"):
        Package.open(path).variant("cpu")


def test_members_that_lie_in_each_other(saved: Path) -> None:
    """What is read of an archive is bounded by its size, though each of its members is."""
    blobs = _Blobs(zipfile.ZipFile(saved), saved)
    blobs._unread = 10
    digest = Package.open(saved)._variants["cpu"][0]["plans"][0][1]
    with pytest.raises(PackageError, match="more than 10"):
        blobs.read(digest)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "m")
    with pytest.raises((PackageError, IsADirectoryError)):
        Package.open(tmp_path / "m")


def test_damaged_bytes_are_found(saved: Path) -> None:
    """Whatever byte is changed or cut off: an error of ours, or everything that is read is what was saved."""
    whole = saved.read_bytes()
    chance = random.Random(0)
    refused = 0
    for number in range(300):
        at = chance.randrange(len(whole))
        data = (
            whole[:at] + bytes([whole[at] ^ chance.randrange(1, 256)]) + whole[at + 1 :] if number % 3 else whole[:at]
        )
        saved.write_bytes(data)
        try:
            found = Package.open(saved).variant("cpu")
        except PackageError:
            refused += 1
        else:
            np.testing.assert_array_equal(found.constants["w"], W)
            assert found.plans == variant().plans
    assert refused > 150


def test_a_plan_that_does_not_restore(saved: Path) -> None:
    bad = replace(variant(), plans=(SavedPlan("FAKE_ENGINE", b"rubbish"),) * 2)
    save_package(saved, "two", [bad])
    with pytest.raises(
        PackageError,
        match=rf"{saved}: plan 0 in blobs/[0-9a-f]{{64}} of target cpu: FAKE_ENGINE: the payload is damaged",
    ):
        load(saved, device="cpu", engines=[Portable()])


def test_a_plan_that_does_not_fit_its_graph_is_named_with_its_file(saved: Path) -> None:
    def less_workspace(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["program"]["graphs"][0]["workspace"] = 99

    path = edited(saved, less_workspace)
    message = rf"{path}: plan 0 in blobs/[0-9a-f]{{64}}: graph 'add': its plan needs 100 bytes of workspace"
    with pytest.raises(InputError, match=message):
        load(path, device="cpu", engines=[Portable()])
