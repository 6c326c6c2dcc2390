"""The question whether a plugin takes a graph: stable, harmless, and answered for whatever bytes come."""

from __future__ import annotations

import random
from ctypes import byref, c_size_t, c_uint32, c_void_p

from fusilli_plugin.conformance.areas import guarded_bytes
from fusilli_plugin.conformance.bench import Bench, check
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from fusilli_plugin.conformance.samples import plain
from fusilli_plugin.conformance.subject import RESTORE, SERIALIZE, SERIALIZE_NEWEST, Subject, const_data
from hipdnn_backend.errors import WireError
from hipdnn_backend.plugins.abi import ConstData, Status
from hipdnn_backend.wire import EngineConfig, Layout, decode_engine_details, encode_engine_config

_DAMAGED = 400
_SHORT = 96
_ODD = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def damaged(data: bytes, count: int, chance: random.Random) -> list[bytes]:
    """So many kinds of damage to bytes: cut off, bits turned, words replaced, parts moved, noise."""
    made = [data[: len(data) * cut // _SHORT] for cut in range(1, min(_SHORT, count // 4))]
    while len(made) < count:
        bytes_ = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(bytes_))
            how = chance.randrange(4)
            if how == 0:
                bytes_[at] ^= 1 << chance.randrange(8)
            elif how == 1:
                at -= at % 4
                bytes_[at : at + 4] = chance.choice(_ODD).to_bytes(4, "little")
            elif how == 2:
                size = chance.randrange(1, 16)
                start = chance.randrange(len(bytes_))
                bytes_[at : at + size] = bytes_[start : start + size]
            else:
                bytes_[at:] = chance.randbytes(len(bytes_) - at)
        if bytes_:
            made.append(bytes(bytes_))
    return made


@check("claims")
def claims(bench: Bench) -> str:
    """The same question has the same answer; asking for the number alone writes no ids."""
    subject = bench.subject
    handle, other = subject.handle(), subject.handle()
    asked = claimed = 0
    for sample in plain():
        data = sample.data(subject.layout)
        if data is None:
            continue
        bench.say(f"asking about {sample.name}")
        found, count = subject.claims(handle, data), c_uint32(77)
        status = subject.status("GetApplicableEngineIds", handle, byref(const_data(data)), None, 0, byref(count))
        if status == Status.SUCCESS and count.value not in (0, len(found)):
            raise BrokenRule(
                f"{sample.name}: {len(found)} engines take it; asked for the number alone it is {count.value}"
            )
        for again in (handle, other):
            if subject.claims(again, data) != found:
                raise BrokenRule(f"{sample.name}: asked again, other engines take it than {found}")
        asked, claimed = asked + 1, claimed + bool(found)
    for each in (handle, other):
        subject.call("Destroy", each)
    return f"{claimed} of {asked} plain graphs"


@check("claims-layouts")
def claims_layouts(bench: Bench) -> str:
    """Graphs in the wire layouts of November 2025 and the newest."""
    subject = bench.subject
    handle = subject.handle()
    said: list[str] = []
    for layout in Layout:
        found = 0
        for sample in plain():
            data = sample.data(layout)
            if data is None:
                continue
            bench.say(f"asking about {sample.name} in the layout {layout.value}")
            found += bool(subject.claims(handle, data))
        said.append(f"{layout.value}: {found}")
    if not any(int(text.rpartition(" ")[2]) for text in said):
        raise NotTried("it claims no plain graph in either layout")
    return ", ".join(said)


@check("bad-graphs")
def bad_graphs(bench: Bench) -> str:
    """Damaged graphs are declined, by every function that takes one."""
    subject, chance = bench.subject, random.Random(bench.seed)
    handle = subject.handle()
    sources = bench.claimed(handle, 4)
    config = const_data(encode_engine_config(EngineConfig(engine_id=sources[0].engine)))
    tried = 0
    for source in sources:
        for number, data in enumerate(damaged(source.data, _DAMAGED // len(sources), chance)):
            bench.say(f"damaged graph {number} of {source.sample.name}: {data[:24].hex()}... of {len(data)} bytes")
            area = guarded_bytes(data)
            graph = ConstData(area.address, area.size)
            status, found = subject.applicable(handle, graph)
            if status:
                subject.error()
            if not found:
                _refused_elsewhere(subject, handle, source.engine, config, graph)
            tried += 1
            area.close()
    for source in sources:  # it still works
        if not subject.claims(handle, source.data):
            raise BrokenRule(f"after damaged graphs it no longer takes {source.sample.name}")
    subject.call("Destroy", handle)
    return f"{tried} damaged graphs"


def _refused_elsewhere(subject: Subject, handle: int, engine: int, config: ConstData, graph: ConstData) -> None:
    """Functions that hipDNN calls after a yes only; what they say to a graph that is not taken matters little."""
    size, context, details = c_size_t(), c_void_p(), ConstData()
    if subject.status("GetEngineDetails", handle, engine, byref(graph), byref(details)) == Status.SUCCESS:
        subject.call("DestroyEngineDetails", handle, byref(details))
    subject.status("GetWorkspaceSize", handle, byref(config), byref(graph), byref(size))
    arguments = (byref(config), byref(graph), byref(context))
    if subject.status("CreateExecutionContext", handle, *arguments) == Status.SUCCESS:
        subject.destroy_context(handle, context.value or 0)


@check("bad-configs")
def bad_configs(bench: Bench) -> str:
    """Damaged engine configs, and one for another engine, are refused."""
    subject, chance = bench.subject, random.Random(bench.seed)
    handle = subject.handle()
    (claimed,) = bench.claimed(handle, 1)
    good = encode_engine_config(EngineConfig(engine_id=claimed.engine))
    graph = const_data(claimed.data)
    stranger = next(id_ for id_ in range(1, 1 << 20) if id_ not in subject.ids)
    other = const_data(encode_engine_config(EngineConfig(engine_id=stranger)))
    bench.say("a config of another engine")
    context = c_void_p()
    subject.refuses("a config for another engine", "CreateExecutionContext", handle, byref(other), byref(graph),
                    byref(context))  # fmt: skip
    for data in damaged(good, _DAMAGED // 4, chance):
        bench.say(f"damaged config {data.hex()}")
        area = guarded_bytes(data)
        config, size = ConstData(area.address, area.size), c_size_t()
        subject.status("GetWorkspaceSize", handle, byref(config), byref(graph), byref(size))
        arguments = (byref(config), byref(graph), byref(context))
        if subject.status("CreateExecutionContext", handle, *arguments) == Status.SUCCESS:
            subject.destroy_context(handle, context.value or 0)
        area.close()
    subject.call("Destroy", handle)
    return f"{_DAMAGED // 4} damaged configs, and one for another engine"


@check("details")
def details(bench: Bench) -> str:
    """Engine details are FlatBuffers that say what they should, and go back."""
    subject = bench.subject
    handle = subject.handle()
    found = bench.claimed(handle, 6)
    knobs: set[str] = set()
    notes: set[int] = set()
    for claimed in found:
        bench.say(f"details for {claimed.sample.name}")
        raw = subject.details(handle, claimed.engine, claimed.data)
        try:
            told = decode_engine_details(raw)
        except WireError as error:
            raise BrokenRule(f"{claimed.sample.name}: damaged EngineDetails: {error}") from None
        if told.engine_id != claimed.engine:
            raise BrokenRule(f"{claimed.sample.name}: details of engine {told.engine_id}, asked for {claimed.engine}")
        knobs |= {knob.knob_id for knob in told.knobs}
        notes |= set(told.behavior_notes)
    saves = any(subject.has(name) for name in (SERIALIZE, SERIALIZE_NEWEST)) and subject.has(RESTORE)
    if 4 in notes and not saves:
        raise BrokenRule("its behaviour notes say that plans can be saved, and it lacks functions for that")
    subject.call("Destroy", handle)
    return f"{len(found)} graphs, {len(knobs)} knobs, behaviour notes {sorted(notes)}"


@check("workspace")
def workspace(bench: Bench) -> str:
    """The first answer about the workspace is an upper bound of the plan's own."""
    subject = bench.subject
    handle = subject.handle()
    sizes: list[int] = []
    for claimed in bench.claimed(handle, 6):
        bench.say(f"workspace of {claimed.sample.name}")
        bound = subject.estimate(handle, claimed.engine, claimed.data)
        context = subject.build(handle, claimed.engine, claimed.data)
        size = subject.size(handle, context)
        subject.destroy_context(handle, context)
        if size > bound:
            raise BrokenRule(f"{claimed.sample.name}: the plan needs {size} bytes, {bound} were said to suffice")
        sizes.append(size)
    subject.call("Destroy", handle)
    return f"{len(sizes)} graphs, at most {max(sizes)} bytes"
