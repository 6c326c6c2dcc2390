"""What a host may set for a plan, and what its settings mean for a compile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from fusilli_plugin.errors import BadParamError
from hipdnn_backend.wire import EngineConfig, IntConstraint, Knob, KnobValue
from iree_bridge import Target
from iree_bridge.compile.options import TuneMode

__all__ = ["Settings", "knobs_for", "settings_of"]

_LOG: Final = logging.getLogger(__name__)
_NO_LIMIT: Final = 2**63 - 1
_LIMIT: Final = "global.workspace_size_limit"
_DETERMINISTIC: Final = "global.deterministic"
_SPLIT: Final = "fusilli.split_reduction"
_LEVEL: Final = "fusilli.opt_level"
_TUNE: Final = "fusilli.tune"


class Settings(NamedTuple):
    """The knobs of one plan.

    Attributes:
        flags: compiler flags; they are appended to those of the target and so part of the cache key.
        workspace_limit: bytes that the plan's workspace may have.
        tune: which form of the graph serves; None: as the engine's options say.
    """

    flags: tuple[str, ...] = ()
    workspace_limit: int = _NO_LIMIT
    tune: TuneMode | None = None


def knobs_for(target: Target) -> tuple[Knob, ...]:
    """The knobs that mean something on a target, with finite values where hosts can sweep them."""
    return tuple(knob for knob, _, applies in _KNOBS.values() if applies(target))


def settings_of(config: EngineConfig, target: Target) -> Settings:
    """The settings that an engine config asks for; unknown knobs are ignored with a warning, as hipDNN does.

    Raises:
        BadParamError: a value is of the wrong type or not among those allowed.
    """
    settings = Settings()
    seen: set[str] = set()
    for setting in config.knobs:
        if setting.knob_id not in _KNOBS:
            _LOG.warning("knob '%s' is not known here and ignored", setting.knob_id)
            continue
        if setting.knob_id in seen:
            raise BadParamError(f"knob '{setting.knob_id}' is set twice")
        seen.add(setting.knob_id)
        knob, apply, applies = _KNOBS[setting.knob_id]
        value = _checked(knob, setting.value)
        if applies(target):
            settings = apply(settings, value)
    # Sorted, so that the order of the settings makes no other key.
    return settings._replace(flags=tuple(sorted(settings.flags)))


def _checked(knob: Knob, value: KnobValue) -> int:
    bounds = knob.constraint
    assert isinstance(bounds, IntConstraint)
    if not isinstance(value, int):
        raise BadParamError(f"knob '{knob.knob_id}' takes an integer, got {value!r}")
    if bounds.valid_values and value not in bounds.valid_values:
        raise BadParamError(f"knob '{knob.knob_id}': {value} is none of {', '.join(map(str, bounds.valid_values))}")
    if not bounds.min_value <= value <= bounds.max_value:
        raise BadParamError(f"knob '{knob.knob_id}': {value} is outside {bounds.min_value} .. {bounds.max_value}")
    return value


def _choices(name: str, description: str, default: int, values: tuple[int, ...]) -> Knob:
    bounds = IntConstraint(min_value=min(values), max_value=max(values), valid_values=values)
    return Knob(knob_id=name, description=description, default_value=default, constraint=bounds)


def _limit(settings: Settings, value: int) -> Settings:
    return settings._replace(workspace_limit=value)


def _deterministic(settings: Settings, _: int) -> Settings:
    """Compiled code uses no atomic additions: it is deterministic whatever the host asks for."""
    return settings


def _split(settings: Settings, value: int) -> Settings:
    flag = () if value else ("--iree-dispatch-creation-enable-split-reduction=false",)
    return settings._replace(flags=(*settings.flags, *flag))


def _level(settings: Settings, value: int) -> Settings:
    flag = () if value == 3 else (f"--iree-opt-level=O{value}",)
    return settings._replace(flags=(*settings.flags, *flag))


def _tune(settings: Settings, value: int) -> Settings:
    return settings._replace(tune=_TUNE_MODES[value])


_TUNE_MODES: Final = (TuneMode.OFF, TuneMode.CACHED, TuneMode.MEASURE)
_Apply = Callable[[Settings, int], Settings]
_Applies = Callable[[Target], bool]

_KNOBS: Final[dict[str, tuple[Knob, _Apply, _Applies]]] = {
    knob.knob_id: (knob, apply, applies)
    for knob, apply, applies in (
        (
            Knob(
                knob_id=_LIMIT,
                description="Bytes of workspace that the plan may need; plans that need more are refused.",
                default_value=_NO_LIMIT,
                constraint=IntConstraint(min_value=0, max_value=_NO_LIMIT),
            ),
            _limit,
            lambda _: True,
        ),
        (
            _choices(_DETERMINISTIC, "Equal inputs give equal bits. Always true of this engine.", 1, (0, 1)),
            _deterministic,
            lambda _: True,
        ),
        (
            _choices(_SPLIT, "Split long reductions over several workgroups.", 1, (0, 1)),
            _split,
            lambda target: target.is_gpu,
        ),
        (
            _choices(_LEVEL, "Optimisation level of the compiler.", 3, (1, 2, 3)),
            _level,
            lambda _: True,
        ),
        (
            _choices(_TUNE, "Kernels: 0 the default, 1 the fastest measured, 2 measured now.", 1, (0, 1, 2)),
            _tune,
            lambda _: True,
        ),
    )
}
