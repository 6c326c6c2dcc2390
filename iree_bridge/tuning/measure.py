"""Measures the forms of a graph on a device: each is compiled, checked against the reference, then timed.

A form that gives a wrong result is never timed. The others run in turns, so that what disturbs the machine for a while
disturbs all of them; a form takes the place of the default if it was faster in three rounds of four, beyond noise.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from fusilli_ground.locks import fork_safe_lock
from graph_api import CompileError, ExecutionError, FusilliError, Graph, TensorAttr
from iree_bridge.artifact.vectors import TestVector, make_inputs, make_sampled_vector, make_vector
from iree_bridge.compile import tuned
from iree_bridge.compile.compiler import CompiledCode, cache_for, compile_code, save_wrong
from iree_bridge.compile.options import CompileMode, Options, TuneMode
from iree_bridge.compile.tuned import Figure, Record
from iree_bridge.devices.device import Device
from iree_bridge.runtime import Executable
from iree_bridge.support import support
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import Variant, candidates
from iree_bridge.tuning.placing import placed

__all__ = ["ensure", "tune"]

_LOG: Final = logging.getLogger(__name__)
_SEEDS: Final = (0, 1)
_WARM_UP: Final = 3
_LEAST_ROUNDS, _MOST_ROUNDS = 7, 50
_MOST_FLOPS: Final = 2e10
"""Of a graph whose reference is computed as a whole: half a minute at most. Who measures is willing to wait."""
_SLICE: Final = 0.002
"""Seconds that a form runs in a round at least."""
_TIMING: Final = 4.0
"""Seconds for all rounds of a graph at most, beyond the least number of rounds."""
_HOPELESS: Final = 1.5
"""Times the fastest; slower forms leave after some rounds, but for the default."""
_WORTH: Final = 0.97
"""Of the default's time; what gains less stays behind it."""
_one_at_a_time: Final = fork_safe_lock()

Launch = Callable[[], object]


def ensure(graph: Graph, device: Device, options: Options) -> None:
    """What ``TuneMode.MEASURE`` asks for before a graph is built: it is measured unless it was. Never fails."""
    if options.tune is not TuneMode.MEASURE or options.compile is CompileMode.NEVER:
        return
    target = device.target
    try:
        key, place = tuned.key_for(graph, target, options.extra_flags), tuned.place_of(target)
        if not any(record.place == place for record in tuned.records(cache_for(options), key)):
            tune(graph, device, options)
    except FusilliError as error:
        _LOG.warning("graph '%s' is not tuned: %s", graph.name, str(error).splitlines()[0])


def tune(
    graph: Graph,
    device: str | Device,
    options: Options | None = None,
    *,
    budget: float = 60.0,
    tell: Callable[[str], None] = lambda text: None,
) -> Record:
    """Measure the forms of a graph, and keep what was found, so that it serves from now on.

    Args:
        graph: validated, or valid.
        device: where; a name, or a device. Its stream is not used.
        options: default: ``Options.from_env()``.
        budget: seconds in which forms are compiled and checked; the default form is in any case. What is not ready then
            is not tried.
        tell: called with what is done next.

    Raises:
        GraphError: the graph is not valid.
        NotSupportedError: the device's target does not serve it.
        CompileError, ExecutionError: no form compiles, or runs, or is right.
    """
    options = replace(Options.or_env(options), tune=TuneMode.OFF)
    place = device if isinstance(device, Device) else Device.parse(device)
    place, end = place.on_stream(None), time.monotonic() + budget
    target = place.target
    support(graph.validate(), target).require()
    forms = tuple(form for form in candidates(graph, target) if not form.apart)  # that is never the fastest
    vectors = [_vector(graph, seed) for seed in _SEEDS]
    figures: dict[str, Figure] = {}
    ready: dict[str, Executable] = {}
    keys: dict[str, str] = {}
    for form, code in _compiled(graph, target, forms, options, end, tell):
        name = form.name
        if isinstance(code, Figure):
            figures[name] = code
            continue
        same = keys.setdefault(code.key, name)
        if same != name:
            figures[name] = Figure(name, "not tried", text=f"its code is that of '{same}'")
            continue
        tell(f"checking '{name}'")
        executable, figure = _checked(graph, code, place, form, vectors, options)
        if executable is None:
            figures[name] = figure
        else:
            ready[name] = executable
    if not ready:
        said = "; ".join(f"{name}: {figure.text}" for name, figure in figures.items())
        raise ExecutionError(f"graph '{graph.name}': no form is right on {place}: {said}")
    tell(f"timing {len(ready)} forms")
    rounds = _timed(graph, ready, place)
    figures |= {name: _figure(name, times) for name, times in rounds.items()}
    record = Record(
        key=tuned.key_for(graph, target, options.extra_flags),
        graph=graph.name,
        target=str(target),
        place=tuned.place_of(target),
        winner=_winner(rounds),
        figures=tuple(figures[form.name] for form in forms),
    )
    tuned.keep(cache_for(options), record)
    return record


def _compiled(
    graph: Graph, target: Target, forms: Sequence[Variant], options: Options, end: float, tell: Callable[[str], None]
) -> Iterator[tuple[Variant, CompiledCode | Figure]]:
    """The code of each form, or why there is none; nothing compiles any more when the last one is told.

    The first form may take as long as any compile, the others what is left of the time.
    """
    tell(f"compiling {len(forms)} forms")

    def make(form: Variant) -> CompiledCode | Figure:
        left = end - time.monotonic()
        if form is forms[0]:
            return compile_code(graph, target, options, form=form.name)
        if left <= 0:
            return Figure(form.name, "not tried", text=_LATE)
        try:
            limited = replace(options, timeout=min(left, options.timeout), failures=0)
            return compile_code(graph, target, limited, form=form.name)
        except CompileError as error:
            if error.kind == "timeout":
                return Figure(form.name, "not tried", text=_LATE)
            return Figure(form.name, "failed", text=str(error).splitlines()[0])

    with ThreadPoolExecutor(min(options.workers, len(forms)), "fusilli-tune") as pool:
        futures = [(form, pool.submit(make, form)) for form in forms]
        for form, future in futures:
            try:
                yield form, future.result()
            except CompileError as error:  # of the first
                yield form, Figure(form.name, "failed", text=str(error).splitlines()[0])


_LATE: Final = "the time was over before it was compiled"


def _vector(graph: Graph, seed: int) -> TestVector | str:
    whole = make_vector(graph, seed, most_flops=_MOST_FLOPS)
    return make_sampled_vector(graph, seed) if isinstance(whole, str) else whole


def _checked(
    graph: Graph,
    code: CompiledCode,
    place: Device,
    form: Variant,
    vectors: Sequence[TestVector | str],
    options: Options,
) -> tuple[Executable | None, Figure]:
    """The code on the device, if it gives what the reference gives; else what is wrong with it."""
    none = next((vector for vector in vectors if isinstance(vector, str)), "")
    if none and not form.is_proven:
        return None, Figure(form.name, "not tried", text=f"it cannot be checked: {none}")
    try:
        executable = Executable(graph.arguments(), code.vmfb, place, flops=graph.flops(), alignment=code.alignment)
        known = [vector for vector in vectors if isinstance(vector, TestVector)]
        wrong = [text for vector in known for text in _wrong(graph, executable, vector)]
    except ExecutionError as error:
        return None, Figure(form.name, "failed", text=str(error).splitlines()[0])
    if not wrong:
        return executable, Figure(form.name, tuned.RIGHT)
    folder = save_wrong(graph, code, wrong[0], options)
    text = wrong[0] + ("" if folder is None else f"; reproducer: {folder}")
    (_LOG.error if form.is_proven else _LOG.info)("form '%s' of graph '%s' is wrong: %s", form.name, graph.name, text)
    return None, Figure(form.name, "wrong", text=text)


def _wrong(graph: Graph, executable: Executable, vector: TestVector) -> list[str]:
    results: Mapping[TensorAttr, Any] = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    for array in results.values():
        array[...] = array.dtype.type(77)
    executable.run({**make_inputs(graph, vector.seed), **results})
    found = vector.check(graph, {tensor.uid: array for tensor, array in results.items()})
    return [str(each) for each in found if not each.ok]


def _timed(graph: Graph, ready: Mapping[str, Executable], place: Device) -> dict[str, list[float]]:
    """Seconds of a launch in each round that a form took part in; the default's come first."""
    inputs = make_inputs(graph, _SEEDS[0])
    arrays = [tensor.empty() for tensor in graph.arguments().outputs] + [inputs[t] for t in graph.arguments().inputs]
    with placed(place, arrays) as addresses, _alone():
        launches = {name: executable.bind_pointers(addresses) for name, executable in ready.items()}
        # what runs in the calling thread alone is measured by its own time, whoever else uses the processor
        return _rounds(launches, time.thread_time if place.driver == "local-sync" else time.perf_counter)


def _rounds(launches: Mapping[str, Launch], clock: Callable[[], float]) -> dict[str, list[float]]:
    default = next(iter(launches))
    counts: dict[str, int] = {}
    for name, launch in launches.items():
        for _ in range(_WARM_UP):
            launch()
        counts[name] = max(1, round(_SLICE / max(_seconds(launch, 1, clock), 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in launches}
    running, begun = list(launches), time.monotonic()
    for number in range(_MOST_ROUNDS):
        for name in running:
            seconds[name].append(_seconds(launches[name], counts[name], clock))
        if number + 1 >= _LEAST_ROUNDS:
            if time.monotonic() - begun > _TIMING:
                break
            best = min(statistics.median(seconds[name]) for name in running)
            limit = _HOPELESS * best
            running = [name for name in running if name == default or statistics.median(seconds[name]) <= limit]
    return seconds


def _seconds(launch: Launch, count: int, clock: Callable[[], float]) -> float:
    begun = clock()
    for _ in range(count):
        launch()
    return (clock() - begun) / count


def _figure(name: str, times: Sequence[float]) -> Figure:
    quarters = statistics.quantiles(times, n=4)
    return Figure(name, tuned.RIGHT, statistics.median(times), (quarters[2] - quarters[0]) / 2)


def _winner(rounds: Mapping[str, Sequence[float]]) -> str:
    """The form with the best median of those that beat the default, round by round; else the default, the first."""
    default, *others = rounds
    ratios = {
        name: sorted(own / theirs for own, theirs in zip(rounds[name], rounds[default], strict=False))
        for name in others
    }
    better = [name for name, each in ratios.items() if each[3 * (len(each) - 1) // 4] < _WORTH]
    return min(better, key=lambda name: statistics.median(ratios[name]), default=default)


@contextmanager
def _alone() -> Iterator[None]:
    """Nobody else of this process times meanwhile."""
    with _one_at_a_time:
        yield
