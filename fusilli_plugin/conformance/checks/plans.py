"""Plans that are saved and restored."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from ctypes import byref, c_void_p

from fusilli_plugin.conformance.areas import guarded_bytes
from fusilli_plugin.conformance.bench import Bench, Claimed, check
from fusilli_plugin.conformance.checks.claims import damaged
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from fusilli_plugin.conformance.subject import (
    RESTORE,
    SERIALIZE,
    SERIALIZE_NEWEST,
    Subject,
    const_data,
    four_argument_restore,
)
from hipdnn_backend.plugins.abi import ConstData, Status
from hipdnn_backend.wire import EngineConfig, encode_engine_config

_DAMAGED = 120


def _saving(subject: Subject) -> list[str]:
    """The functions that save plans.

    Raises:
        NotTried: it has none, or cannot restore.
    """
    subject.needs(RESTORE, "DestroySerializedExecutionContext")
    found = [name for name in (SERIALIZE, SERIALIZE_NEWEST) if subject.has(name)]
    if not found:
        raise NotTried(f"it has no hipdnnEnginePlugin{SERIALIZE}")
    return found


def _saved(bench: Bench, handle: int, count: int) -> Iterator[tuple[Claimed, bytes]]:
    """Claimed graphs and their plans as bytes."""
    subject = bench.subject
    name = _saving(subject)[-1]
    for claimed in bench.claimed(handle, count):
        context = subject.build(handle, claimed.engine, claimed.data)
        bench.say(f"saving the plan of {claimed.sample.name}")
        data = subject.serialize(handle, claimed.engine, context, name)
        subject.destroy_context(handle, context)
        yield claimed, data


@check("save")
def save(bench: Bench) -> str:
    """Plans are saved, by hipDNN's function before and since summer 2026, and restored on another handle."""
    subject = bench.subject
    first, second = subject.handle(), subject.handle()
    names = _saving(subject)
    found = bench.claimed(first, 3)
    for claimed in found:
        for name in names:
            context = subject.build(first, claimed.engine, claimed.data)
            bench.say(f"{name} for {claimed.sample.name}")
            data = subject.serialize(first, claimed.engine, context, name)
            subject.destroy_context(first, context)
            restored = _restored(bench, second, claimed, data)
            with bench.trial(second, claimed, context=restored) as trial:
                trial.go("a restored plan")
                trial.go("a restored plan again")
            subject.destroy_context(second, restored)
    if SERIALIZE_NEWEST in names:
        stranger = next(id_ for id_ in range(1, 1 << 20) if id_ not in subject.ids)
        context = subject.build(first, found[0].engine, found[0].data)
        subject.refuses("another engine's id", SERIALIZE_NEWEST, first, stranger, context, byref(ConstData()))
        subject.destroy_context(first, context)
    for each in (first, second):
        subject.call("Destroy", each)
    return f"{len(found)} graphs, {' and '.join(names)}"


def _restored(bench: Bench, handle: int, claimed: Claimed, data: bytes) -> int:
    """From bytes that are gone afterwards.

    Raises:
        BrokenRule: it fails in both published forms.
    """
    area = guarded_bytes(data)
    made, _ = _restore(bench, handle, claimed, ConstData(area.address, area.size))
    if not made:
        text = bench.subject.error()
        raise BrokenRule(f"{claimed.sample.name}: a plan that it saved is restored in neither published form: {text}")
    area.forbid()
    return made


def _restore(
    bench: Bench, handle: int, claimed: Claimed, payload: ConstData, forms: Sequence[int] = (3, 4)
) -> tuple[int, int]:
    """By the form with three arguments, else the one with four: the context and the form, 0 and 0 where both fail."""
    config = const_data(encode_engine_config(EngineConfig(engine_id=claimed.engine)))
    for form in forms:
        made, copy = (
            c_void_p(),
            ConstData(payload.ptr, payload.size),
        )  # a plugin of the other form writes to one of them
        bench.say(f"restoring a plan of {claimed.sample.name} with {form} arguments")
        if form == 3:
            status = bench.subject.status(RESTORE, handle, byref(copy), byref(made))
        else:
            status = four_argument_restore(bench.subject)(handle, byref(config), byref(copy), byref(made))
        if status == Status.SUCCESS and made.value:
            return made.value, form
    return 0, 0


@check("restore-with-config")
def restore_with_config(bench: Bench) -> str:
    """The published form of restoring that has four arguments, the second an engine config."""
    subject = bench.subject
    handle = subject.handle()
    for claimed, data in _saved(bench, handle, 2):
        made, _ = _restore(bench, handle, claimed, const_data(data), (4,))
        if not made:
            raise NotTried(f"it takes the form with three arguments alone: {subject.error()}")
        with bench.trial(handle, claimed, context=made) as trial:
            trial.go("a plan restored with a config")
        subject.destroy_context(handle, made)
    subject.call("Destroy", handle)
    return "it is taken"


@check("bad-plans")
def bad_plans(bench: Bench) -> str:
    """Damaged plans are refused, or still right."""
    subject, chance = bench.subject, random.Random(bench.seed)
    handle = subject.handle()
    refused = tried = 0
    for claimed, good in _saved(bench, handle, 2):
        made, form = _restore(bench, handle, claimed, const_data(good))
        if not made:
            raise BrokenRule(f"{claimed.sample.name}: a plan that it saved is not restored: {subject.error()}")
        subject.destroy_context(handle, made)
        for number, data in enumerate(damaged(good, _DAMAGED // 2, chance)):
            if data == good:
                continue
            bench.say(f"damaged plan {number} of {claimed.sample.name}")
            area = guarded_bytes(data)
            made, _ = _restore(bench, handle, claimed, ConstData(area.address, area.size), (form,))
            area.close()
            tried += 1
            if not made:
                subject.error()
                refused += 1
                continue
            with bench.trial(handle, claimed, context=made) as trial:
                trial.go(f"a plan restored from damaged bytes ({number})")
            subject.destroy_context(handle, made)
    subject.call("Destroy", handle)
    return f"{refused} of {tried} refused, the others right"
