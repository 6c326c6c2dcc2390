from __future__ import annotations

from pathlib import Path

import pytest

from fusilli_ground.errors import OptionError
from fusilli_plugin.ort_ep.options import ContextSettings, ProviderOptions
from hipdnn_backend.offload.buckets import OnNewShape

PREFIX = "ep.hipdnnexecutionprovider."


def options(**entries: str) -> ProviderOptions:
    return ProviderOptions.from_entries({PREFIX + name: text for name, text in entries.items()})


def test_settings_that_are_not_for_the_provider_are_left_alone() -> None:
    assert ProviderOptions.from_entries({"session.x": "1", "ep.other.strict": "maybe"}) == ProviderOptions()


def test_every_option_is_read(tmp_path: Path) -> None:
    found = options(
        strict="1", engines="A, B", dims="batch=2,seq=16", min_nodes="3", max_shapes="2", dump=str(tmp_path / "new"),
        on_new_shape="wait", inputs="rate=16000 shape=[-1, 4]", shapes="batch=1,2 seq=64..128:64",
    )  # fmt: skip
    assert found == ProviderOptions(
        True, ("A", "B"), {"batch": 2, "seq": 16}, 3, 2, tmp_path / "new", OnNewShape.WAIT,
        {"rate": 16000, "shape": [-1, 4]}, {"batch": (1, 2), "seq": (64, 128)},
    )  # fmt: skip
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("strict", "maybe", "0 or 1"),
        ("min_nodes", "0", "a number from 1"),
        ("max_shapes", "-1", "a number from 1"),
        ("max_shapes", "99999", "a number from 1"),
        ("dims", "batch", "batch=1"),
        ("dims", "batch=0", "batch=1"),
        ("engines", "A,,B", "names separated by commas"),
        ("dump", "", "a folder"),
        ("dump", "/proc/here", "a folder that can be written; this one cannot"),
        ("on_new_shape", "later", "fallback, wait, error"),
    ],
)
def test_a_malformed_value_is_an_error_that_says_what_is_valid(name: str, text: str, says: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}'.*{says}"):
        options(**{name: text})


def test_an_unknown_option_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"no option 'strikt' \(did you mean strict\?\)\. .*dims, dump, engines"):
        options(strikt="1")


def test_settings_for_models_with_compiled_code() -> None:
    entries = {"ep.context_enable": "1", "ep.context_file_path": "a.onnx", "ep.context_embed_mode": "1"}
    assert ContextSettings.from_entries(entries) == ContextSettings(True, "a.onnx", True, "")
    assert not ContextSettings.from_entries({}).enabled
