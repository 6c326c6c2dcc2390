"""The options of a session with this provider: what `SessionOptions.add_provider_for_devices(devices, {...})` takes.

They reach the provider as strings among the session's settings. An unknown name or a malformed value is an error that
names what would be valid.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusilli_ground.errors import OptionError
from fusilli_ground.spelling import did_you_mean
from fusilli_plugin.ort_ep.abi import NAME
from hipdnn_backend.offload.buckets import OnNewShape, Sizes, parse_sizes
from iree_bridge.compile.options import TuneMode

__all__ = ["ContextSettings", "ProviderOptions"]

_PREFIX: Final = f"ep.{NAME.lower()}."
_MAX_SHAPES: Final = 1024


def _flag(text: str) -> bool:
    values = {"0": False, "1": True, "false": False, "true": True}
    if text.lower() not in values:
        raise ValueError("0 or 1")
    return values[text.lower()]


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_SHAPES:
        raise ValueError(f"a number from 1 to {_MAX_SHAPES}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ValueError("names separated by commas, e.g. FUSILLI_ENGINE")
    return names


def _dims(text: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, extent = part.partition("=")
        if not name.strip() or not extent.strip().isdecimal() or int(extent) < 1:
            raise ValueError("names and extents separated by commas, e.g. batch=1,sequence=128")
        found[name.strip()] = int(extent)
    return found


def _values(text: str) -> Mapping[str, Any]:
    """``name=value`` each, a number or a JSON array, separated by blanks."""
    found: dict[str, Any] = {}
    for part in re.split(r"\s+(?=[^\s=]+=)", text.strip()):
        name, sign, value = part.partition("=")
        try:
            if not name or not sign:
                raise ValueError(part)
            found[name] = json.loads(value)
            np.asarray(found[name], np.float64)
        except (ValueError, TypeError, RecursionError):
            raise ValueError("names and values separated by blanks, e.g. rate=16000 shape=[1,80]") from None
    return found


def _folder(text: str) -> Path:
    """A folder that can be written, made if it is not there: who asks for a dump gets one, or hears why not."""
    if not text or "\0" in text:
        raise ValueError("the path of a folder")
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=text):
            pass
    except OSError as error:
        raise ValueError(f"a folder that can be written; this one cannot: {error.strerror or error}") from error
    return Path(text)


def _tune(text: str) -> TuneMode:
    try:
        return TuneMode(text)
    except ValueError:
        raise ValueError(", ".join(mode.value for mode in TuneMode)) from None


@dataclass(frozen=True)
class ProviderOptions:
    """What a user may ask of a session.

    Attributes:
        strict: raise if a node stays with ONNX Runtime although an engine supports it, or if something fails inside.
        engines: names of the engines that may be used, () for all.
        dims: extents to assume for dims that are not known before a run, when nodes are claimed.
        min_nodes: groups of fewer nodes stay with ONNX Runtime.
        max_shapes: for how many different input shapes a group with dynamic dims is kept compiled.
        on_new_shape: what a run does whose shape has no code; in strict mode it waits where it would fall back.
        inputs: values that inputs of the model are expected to have; code is made for these.
        shapes: sizes of open dims for which groups are compiled when the session is made.
        tune: which form of a group serves, see `iree_bridge.compile.options.TuneMode`; None: as the environment says.
        dump: folder for a copy of each compiled group, None for none.
    """

    strict: bool = field(default=False, metadata={"read": _flag})
    engines: tuple[str, ...] = field(default=(), metadata={"read": _names})
    dims: Mapping[str, int] = field(default_factory=dict, metadata={"read": _dims})
    min_nodes: int = field(default=1, metadata={"read": _count})
    max_shapes: int = field(default=8, metadata={"read": _count})
    dump: Path | None = field(default=None, metadata={"read": _folder})
    on_new_shape: OnNewShape = field(default=OnNewShape.FALLBACK, metadata={"read": OnNewShape.read})
    inputs: Mapping[str, Any] = field(default_factory=dict, metadata={"read": _values})
    shapes: Sizes = field(default_factory=dict, metadata={"read": parse_sizes})
    tune: TuneMode | None = field(default=None, metadata={"read": _tune})

    @classmethod
    def from_entries(cls, entries: Mapping[str, str]) -> ProviderOptions:
        """Take the provider's options from a session's settings.

        Raises:
            OptionError: one is unknown or malformed.
        """
        readers = {item.name: item.metadata["read"] for item in dataclasses.fields(cls)}
        found: dict[str, Any] = {}
        for key, text in entries.items():
            if not key.startswith(_PREFIX):
                continue
            name = key.removeprefix(_PREFIX)
            if name not in readers:
                known = ", ".join(sorted(readers))
                raise OptionError(f"{NAME} has no option '{name}'{did_you_mean(name, readers)}. Its options: {known}")
            try:
                found[name] = readers[name](text)
            except ValueError as error:
                raise OptionError(f"option '{name}' of {NAME} is {text!r}; it takes {error}") from None
        return cls(**found)


@dataclass(frozen=True)
class ContextSettings:
    """ONNX Runtime's own settings about models that carry compiled code.

    Attributes:
        enabled: such a model is to be made (``ep.context_enable``).
        path: where it will be written, "" beside the model (``ep.context_file_path``).
        embed: the code goes into it, not into a file beside it (``ep.context_embed_mode``).
        prefix: of the names of its partitions and their files (``ep.context_node_name_prefix``).
    """

    enabled: bool = False
    path: str = ""
    embed: bool = False
    prefix: str = ""

    @classmethod
    def from_entries(cls, entries: Mapping[str, str]) -> ContextSettings:
        """Take them from a session's settings."""
        return cls(
            enabled=entries.get("ep.context_enable") == "1",
            path=entries.get("ep.context_file_path", ""),
            embed=entries.get("ep.context_embed_mode") == "1",
            prefix=entries.get("ep.context_node_name_prefix", ""),
        )
