"""What grows when the same is done again and again: memory, open files, threads."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import random
from collections.abc import Callable
from ctypes import byref
from pathlib import Path
from typing import Final, NamedTuple

from fusilli_plugin.conformance.areas import guarded_bytes
from fusilli_plugin.conformance.bench import Bench, check
from fusilli_plugin.conformance.checks.claims import damaged
from fusilli_plugin.conformance.findings import BrokenRule
from fusilli_plugin.conformance.samples import plain
from fusilli_plugin.conformance.subject import const_data
from hipdnn_backend.plugins.abi import ConstData

_DAMAGED: Final = 8
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PARTS: Final = 4
_ALLOWED: Final = 512
"""Bytes that a cycle may grow by: allocators keep some of what they are given back."""

_trim = ctypes.CDLL(None).malloc_trim


class _Used(NamedTuple):
    memory: int
    files: int
    threads: int
    device: int

    @classmethod
    def now(cls, bench: Bench) -> _Used:
        gc.collect()
        _trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
        return cls(pages * _PAGE, files, threads, bench.place.live_bytes)


def _measure(bench: Bench, what: str, cycle: Callable[[], None]) -> str:
    """Repeat a cycle, and look at what has grown in every part of the repetitions after the first.

    Raises:
        BrokenRule: something has.
    """
    count = max(bench.cycles // _PARTS, 1)
    seen: list[_Used] = []
    for part in range(_PARTS + 1):
        for _ in range(count):
            bench.say(f"{what}, part {part}")
            cycle()
            bench.place.forget()
        seen.append(_Used.now(bench))
    steps = list(itertools.pairwise(seen[1:]))  # the first part fills pools and caches
    memory = min(after.memory - before.memory for before, after in steps) / count
    if memory > _ALLOWED:
        raise BrokenRule(f"{what}: {memory / 1024:.1f} KiB of memory are lost in each of {count * len(steps)} cycles")
    for name in ("files", "threads", "device"):
        lost = [getattr(after, name) - getattr(before, name) for before, after in steps]
        if min(lost) > 0:
            per = min(lost) / count
            raise BrokenRule(f"{what}: {per:.2g} of {_NAMES[name]} are lost in each of {count * len(steps)} cycles")
    return f"{count * (_PARTS + 1)} cycles, {max(memory, 0):.0f} bytes each"


_NAMES: Final = {"files": "the open files", "threads": "the threads", "device": "the bytes of device memory"}


@check("leaks-handles")
def leaks_handles(bench: Bench) -> str:
    """Handles."""
    subject = bench.subject
    return _measure(bench, "a handle", lambda: subject.call("Destroy", subject.handle()))


@check("leaks-questions")
def leaks_questions(bench: Bench) -> str:
    """Graphs that are claimed or declined; details and their bytes."""
    subject = bench.subject
    handle = subject.handle()
    (claimed,) = bench.claimed(handle, 1)
    asked = [data for sample in plain() if (data := sample.data(subject.layout))]

    def cycle() -> None:
        subject.claims(handle, claimed.data)
        subject.details(handle, claimed.engine, claimed.data)
        subject.claims(handle, asked[-1])

    return _measure(bench, "questions", cycle)


@check("leaks-bad-graphs")
def leaks_bad_graphs(bench: Bench) -> str:
    """Damaged graphs that are declined."""
    subject, chance = bench.subject, random.Random(bench.seed)
    handle = subject.handle()
    (claimed,) = bench.claimed(handle, 1)
    areas = [guarded_bytes(data) for data in damaged(claimed.data, _DAMAGED, chance)]

    def cycle() -> None:
        for area in areas:
            subject.applicable(handle, ConstData(area.address, area.size))

    return _measure(bench, "damaged graphs", cycle)


@check("leaks-plans")
def leaks_plans(bench: Bench) -> str:
    """Plans: built, sized, executed, destroyed."""
    subject = bench.subject
    handle = subject.handle()
    (claimed,) = bench.claimed(handle, 1)
    with bench.trial(handle, claimed) as kept:

        def cycle() -> None:
            context = subject.build(handle, claimed.engine, claimed.data)
            subject.size(handle, context)
            at = kept.workspace.address if kept.workspace else 0
            if subject.execute(handle, context, kept.pack.items(), at):
                raise BrokenRule(f"an execution fails: {subject.error()}")
            subject.destroy_context(handle, context)

        return _measure(bench, "a plan", cycle)


@check("leaks-executions")
def leaks_executions(bench: Bench) -> str:
    """Executions, right ones and refused ones."""
    subject = bench.subject
    handle = subject.handle()
    (claimed,) = bench.claimed(handle, 1)
    with bench.trial(handle, claimed) as trial:
        incomplete = dict(list(trial.pack.items())[1:])

        def cycle() -> None:
            for _ in range(4):
                if trial.status():
                    raise BrokenRule(f"an execution fails: {subject.error()}")
            trial.status(incomplete)
            subject.error()

        return _measure(bench, "executions", cycle)


@check("leaks-refusals")
def leaks_refusals(bench: Bench) -> str:
    """Calls that fail."""
    subject = bench.subject

    def cycle() -> None:
        for name in ("hipdnnPluginGetName", "hipdnnPluginGetVersion"):
            subject.status(name, None)
        subject.error()
        subject.status("GetApplicableEngineIds", None, byref(const_data(b"no graph")), None, 0, None)

    return _measure(bench, "refused calls", cycle)
