"""Handles and streams."""

from __future__ import annotations

from ctypes import byref, c_int64, c_size_t, c_uint32, c_void_p

from fusilli_plugin.conformance.bench import Bench, check
from fusilli_plugin.conformance.findings import BrokenRule
from fusilli_plugin.conformance.subject import const_data
from hipdnn_backend.plugins.abi import ConstData, DeviceBuffer
from hipdnn_backend.wire import EngineConfig, encode_engine_config

_MANY = 33


@check("handles")
def handles(bench: Bench) -> str:
    """Many handles, destroyed in odd orders."""
    subject = bench.subject
    made = [subject.handle() for _ in range(_MANY)]
    if len(set(made)) != len(made):
        raise BrokenRule("two handles that are alive have one address; hipDNN refuses the second")
    for handle in made[::2]:
        subject.call("Destroy", handle)
    again = [subject.handle() for _ in range(_MANY // 2)]
    alive = [*made[1::2], *again]
    if len(set(alive)) != len(alive):
        raise BrokenRule("two handles that are alive have one address; hipDNN refuses the second")
    for handle in reversed(alive):
        subject.call("Destroy", handle)
    return f"{len(made) + len(again)} handles"


@check("streams")
def streams(bench: Bench) -> str:
    """The stream may change, go back to the null stream, and is each handle's own."""
    subject, memory = bench.subject, bench.place.memory
    first, second = memory.create_stream(), memory.create_stream()
    handle, other = subject.handle(), subject.handle(second)
    (claimed,) = bench.claimed(handle, 1)
    with bench.trial(handle, claimed) as trial:
        for stream in (first, 0, second, first, 0):
            subject.call("SetStream", handle, stream or None)
            trial.go(f"on stream {stream:#x}")
        trial.go("on another handle's stream", handle=other)
    for each in (handle, other):
        subject.call("Destroy", each)
    for stream in (first, second):
        memory.destroy_stream(stream)
    return f"{claimed.sample.name}: five changes, two handles"


@check("null")
def null(bench: Bench) -> str:
    """NULL in the place of each pointer is an error, not the end of the process."""
    subject = bench.subject
    handle = subject.handle()
    empty, config = ConstData(), encode_engine_config(EngineConfig(engine_id=subject.ids[0]))
    some = const_data(b"no graph")
    ids, count, size, made, details = c_int64(), c_uint32(), c_size_t(), c_void_p(), ConstData()
    tried = 0
    for what, name, arguments in (
        ("NULL for the number of engines", "GetAllEngineIds", (None, 0, None)),
        ("NULL for the handle", "Create", (None,)),
        ("NULL as a handle", "Destroy", (None,)),
        ("NULL as a handle", "SetStream", (None, None)),
        ("NULL as a handle", "GetApplicableEngineIds", (None, byref(some), byref(ids), 1, byref(count))),
        ("NULL as a graph", "GetApplicableEngineIds", (handle, None, byref(ids), 1, byref(count))),
        ("a graph at NULL", "GetApplicableEngineIds", (handle, byref(empty), byref(ids), 1, byref(count))),
        ("NULL for the number of engines", "GetApplicableEngineIds", (handle, byref(some), byref(ids), 1, None)),
        ("NULL as a graph", "GetEngineDetails", (handle, subject.ids[0], None, byref(details))),
        ("NULL for the details", "GetEngineDetails", (handle, subject.ids[0], byref(some), None)),
        ("NULL for the details", "DestroyEngineDetails", (handle, None)),
        ("NULL as a config", "GetWorkspaceSize", (handle, None, byref(some), byref(size))),
        ("NULL as a graph", "GetWorkspaceSize", (handle, byref(const_data(config)), None, byref(size))),
        ("NULL as a config", "CreateExecutionContext", (handle, None, byref(some), byref(made))),
        ("NULL as a graph", "CreateExecutionContext", (handle, byref(const_data(config)), None, byref(made))),
        ("NULL for the plan", "CreateExecutionContext", (handle, byref(const_data(config)), byref(some), None)),
        ("NULL as a plan", "DestroyExecutionContext", (handle, None)),
        ("NULL as a plan", "GetWorkspaceSizeFromExecutionContext", (handle, None, byref(size))),
        ("NULL as a plan", "ExecuteOpGraph", (handle, None, None, (DeviceBuffer * 1)(), 1)),
    ):
        bench.say(f"{what} for hipdnnEnginePlugin{name}")
        subject.refuses(what, name, *arguments)
        tried += 1
    subject.call("Destroy", handle)
    return f"{tried} calls"
