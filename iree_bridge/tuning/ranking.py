"""Orders the forms of a graph for an AMD chip by figures of their code, where no device can measure them.

Only forms that were executed in the emulator for graphs of the class are candidates (``iree_bridge.targets.executed``);
the default serves unless another one is better by far. What a device measures counts before all of this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from graph_api import CompileError, FusilliError, Graph
from iree_bridge.compile import tuned
from iree_bridge.compile.compiler import cache_for
from iree_bridge.compile.options import CompileMode, Options, TuneMode
from iree_bridge.compile.tuned import Figure, Record
from iree_bridge.static.figures import Figures, figures
from iree_bridge.support import support
from iree_bridge.targets.executed import was_executed
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import Variant, variants

__all__ = ["ensure_ranked", "rank"]

_LOG: Final = logging.getLogger(__name__)
_WORTH: Final = 0.9
"""Of the default's estimate; what gains less stays behind it: estimates are rough."""


def ensure_ranked(graph: Graph, target: Target, options: Options) -> None:
    """What ``TuneMode.MEASURE`` asks for where there is no device: a graph is ranked unless it was. Never fails."""
    if options.tune is not TuneMode.MEASURE or options.compile is CompileMode.NEVER or target.backend != "rocm":
        return
    try:
        if not tuned.records(cache_for(options), tuned.key_for(graph, target, options.extra_flags)):
            rank(graph, target, options)
    except FusilliError as error:
        _LOG.warning("graph '%s' is not ranked: %s", graph.name, str(error).splitlines()[0])


def rank(
    graph: Graph,
    target: Target,
    options: Options | None = None,
    *,
    budget: float = 60.0,
    tell: Callable[[str], None] = lambda text: None,
) -> Record:
    """Order the forms of a graph by what their code takes, and keep the order, so that the first serves from now on.

    Args:
        graph: valid.
        target: of AMD.
        options: default: ``Options.from_env()``.
        budget: seconds in which forms are compiled; the default form is in any case.
        tell: called with what is done next.

    Returns:
        A record whose seconds are estimates, which no device has measured.

    Raises:
        GraphError: the graph is not valid.
        NotSupportedError: the target does not serve it.
        CompileError: the default form does not compile, or the target is not AMD's.
    """
    options = replace(Options.or_env(options), tune=TuneMode.OFF)
    support(graph.validate(), target).require()
    if target.backend != "rocm":
        raise CompileError(f"target '{target}': only AMD's forms are ranked by their code; name a gfx target")
    forms = variants(graph, target)
    tell(f"compiling {len(forms)} forms")
    found = dict(zip(forms, _read(graph, target, forms, options, time.monotonic() + budget), strict=True))
    default = found[forms[0]]
    if isinstance(default, Figure):
        raise CompileError(f"graph '{graph.name}': {default.text}")
    kept = {form: each if isinstance(each, Figure) else _judged(form, each, default) for form, each in found.items()}
    record = Record(
        key=tuned.key_for(graph, target, options.extra_flags),
        graph=graph.name,
        target=str(target),
        place=tuned.BY_CODE,
        winner=_best([kept[form] for form in forms]),
        figures=tuple(kept[form] for form in forms),
    )
    tuned.keep(cache_for(options), record)
    return record


def _read(
    graph: Graph, target: Target, forms: Sequence[Variant], options: Options, end: float
) -> list[Figures | Figure]:
    """The figures of each form, or why there are none."""

    def make(form: Variant) -> Figures | Figure:
        left = end - time.monotonic()
        if form is not forms[0]:
            if not was_executed(graph, target, form.name):
                return Figure(form.name, "not tried", text="it was not executed in the emulator for graphs like this")
            if left <= 0:
                return Figure(form.name, "not tried", text="the time was over before it was compiled")
        limit = options.timeout if form is forms[0] else min(left, options.timeout)
        try:
            return figures(graph, target, replace(options, timeout=limit, failures=0), form=form.name)
        except CompileError as error:
            return Figure(form.name, "failed", text=str(error).splitlines()[0])

    with ThreadPoolExecutor(min(options.workers, len(forms)), "fusilli-rank") as pool:
        return list(pool.map(make, forms))


def _judged(form: Variant, found: Figures, default: Figures) -> Figure:
    """What is kept of a form; one that loses what the figures weigh badly is not tried."""
    if found is not default:
        if found.spills > default.spills:
            return Figure(
                form.name, "not tried", text=f"{found.spills} registers and bytes of private memory in its code"
            )
        if default.inspection.matrix and not found.inspection.matrix:
            return Figure(form.name, "not tried", text="its code has no matrix instructions")
    if found.estimate is None:
        text = f"nothing is known of the chip of {found.target}, or its code is not understood"
        return Figure(form.name, tuned.RIGHT if found is default else "not tried", text=text)
    return Figure(form.name, tuned.RIGHT, found.estimate, text=", ".join(found.causes()))


def _best(found: Sequence[Figure]) -> str:
    """The form with the least estimate, if it is better than the default, the first, by far."""
    default = found[0]
    timed = [figure for figure in found if figure.verdict == tuned.RIGHT and figure.seconds]
    best = min(timed, key=lambda figure: figure.seconds, default=default)
    return best.form if best.seconds < _WORTH * default.seconds else default.form
