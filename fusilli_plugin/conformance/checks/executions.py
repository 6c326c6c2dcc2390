"""One execution: what is in the pack, where it lies, what is written."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_uint32
from typing import Any

import numpy as np

from fusilli_plugin.conformance.bench import Bench, Claimed, Trial, check
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from fusilli_plugin.conformance.samples import Sample, overridable, scaled, two_nodes
from hipdnn_backend.plugins.abi import DeviceBuffer

_GRAPHS = 8
_STRANGERS = {-7: 64, 1 << 40: 128, -(1 << 63): 0}


def _each(bench: Bench, count: int, act: Callable[[Trial], None], *, odd: bool = False) -> str:
    """Try something with plans for several graphs."""
    handle = bench.subject.handle()
    found = bench.claimed(handle, count)
    for claimed in found:
        with bench.trial(handle, claimed, odd=odd) as trial:
            act(trial)
    bench.subject.call("Destroy", handle)
    return f"{len(found)} graphs"


@check("execute")
def execute(bench: Bench) -> str:
    """Results, and that nothing else is written: inputs, surroundings of buffers."""

    def act(trial: Trial) -> None:
        for number in range(3):
            trial.go(f"execution {number + 1}")

    return _each(bench, _GRAPHS, act)


@check("alignment")
def alignment(bench: Bench) -> str:
    """Buffers aligned to 16 bytes and no more."""
    return _each(bench, _GRAPHS, lambda trial: trial.go("buffers aligned to 16 bytes"), odd=True)


@check("pack")
def pack(bench: Bench) -> str:
    """The pack in any order, with uids that the plan does not know."""

    def act(trial: Trial) -> None:
        given = trial.pack
        trial.go("the pack turned round", pack=dict(reversed(given.items())))
        trial.go("a pack with strangers", pack={**_STRANGERS, **given, 1 << 50: 0})

    return _each(bench, 4, act)


@check("missing-tensors")
def missing_tensors(bench: Bench) -> str:
    """A pack that lacks a tensor, or has NULL for one, is an error."""
    tried = 0

    def act(trial: Trial) -> None:
        nonlocal tried
        for uid in trial.required:
            for what, given in (
                ("lacks", {key: at for key, at in trial.pack.items() if key != uid}),
                ("has NULL for", {**trial.pack, uid: 0}),
            ):
                trial.fill()
                bench.say(f"a pack that {what} tensor {uid} of {trial.sample.name}")
                if trial.status(given) == 0:
                    raise BrokenRule(f"{trial.sample.name}: a pack that {what} tensor {uid} is executed with success")
                if not bench.subject.error():
                    raise BrokenRule(f"{trial.sample.name}: a pack that {what} tensor {uid} fails without a text")
                tried += 1
        trial.go("after incomplete packs")

    return f"{_each(bench, 4, act)}, {tried} incomplete packs"


@check("null-workspace")
def null_workspace(bench: Bench) -> str:
    """NULL as workspace: right, or an error; where none is needed any pointer will do."""

    def act(trial: Trial) -> None:
        trial.fill()
        bench.say(f"NULL as the workspace of {trial.sample.name}")
        status = trial.status(workspace=0)
        bench.place.memory.synchronize()
        if status == 0:
            trial.judge("with NULL as workspace")
        elif not trial.workspace:
            raise BrokenRule(f"{trial.sample.name} needs no workspace, and fails without: {bench.subject.error()}")
        if not trial.workspace:
            trial.fill()
            bench.say(f"a workspace for {trial.sample.name}, which needs none")
            area = bench.place.area(64)
            if trial.status(workspace=area.address):
                raise BrokenRule(f"{trial.sample.name}: a workspace that is not needed: {bench.subject.error()}")
            bench.place.memory.synchronize()
            trial.judge("with a workspace that is not needed")
            area.close()

    return _each(bench, _GRAPHS, act)


@check("virtual-tensors")
def virtual_tensors(bench: Bench) -> str:
    """The pack may have a buffer for a tensor between two nodes."""
    subject = bench.subject
    handle = subject.handle()
    claimed = bench.claim(handle, two_nodes())
    if claimed is None:
        raise NotTried("it does not claim two pointwise nodes with a tensor between them")
    inner = next(tensor for tensor in claimed.sample.graph.tensors if tensor.is_virtual)
    with bench.trial(handle, claimed) as trial:
        trial.go("without a buffer for the tensor between")
        area = bench.place.area(inner.nbytes)
        trial.go("with a buffer for the tensor between", pack={inner.uid: area.address, **trial.pack})
        area.check("the buffer of the tensor between")
        area.close()
    subject.call("Destroy", handle)
    return claimed.sample.name


@check("scalars")
def scalars(bench: Bench) -> str:
    """A scalar that comes from host memory with each execution (interface 1.2.0)."""
    subject = bench.subject
    handle = subject.handle()
    claimed = bench.claim(handle, scaled())
    if claimed is None:
        raise NotTried("it does not claim a product with such a scalar")
    graph = claimed.sample.graph
    factor = next(tensor for tensor in graph.tensors if tensor.is_pass_by_value)
    with bench.trial(handle, claimed) as trial:
        for value in (2.0, -3.5, 0.25):
            inputs = {**claimed.sample.inputs, factor: np.full(factor.dims, value, np.float32)}
            trial.sample, trial.scalars = Sample(claimed.sample.name, graph, given=inputs), {factor.uid: inputs[factor]}
            trial.go(f"with the scalar {value}")
    subject.call("Destroy", handle)
    return "three values"


@check("overrides")
def overrides(bench: Bench) -> str:
    """Dims overridden at an execution (interface 1.1.0)."""
    subject = bench.subject
    subject.needs("ExecuteOpGraphWithOverrides")
    handle = subject.handle()
    claimed = bench.claim(handle, overridable(4))
    if claimed is None:
        raise NotTried("it does not claim a graph whose dims may be overridden")
    context = subject.build(handle, claimed.engine, claimed.data)
    for rows in (2, 7, 4):
        other = Claimed(overridable(rows), claimed.engine, claimed.data)
        with bench.trial(handle, other, context=context) as trial:
            bench.say(f"dims overridden: {rows} rows")
            _overridden(subject, trial, handle, context)
            bench.place.memory.synchronize()
            trial.judge(f"{rows} rows")
    subject.destroy_context(handle, context)
    subject.call("Destroy", handle)
    return "fewer rows, more, and as many"


def _overridden(subject: Any, trial: Trial, handle: int, context: int) -> None:
    tensors = trial.sample.graph.tensors
    count, pack = len(tensors), trial.pack
    dims = [(c_int64 * tensor.rank)(*tensor.dims) for tensor in tensors]
    strides = [(c_int64 * tensor.rank)(*tensor.strides) for tensor in tensors]
    pointer = ctypes.POINTER(c_int64)
    subject.call(
        "ExecuteOpGraphWithOverrides", handle, context, trial.workspace.address if trial.workspace else None,
        (DeviceBuffer * count)(*pack.items()), count, count, (c_int64 * count)(*(tensor.uid for tensor in tensors)),
        (c_uint32 * count)(*(tensor.rank for tensor in tensors)),
        (pointer * count)(*(ctypes.cast(each, pointer) for each in dims)),
        (pointer * count)(*(ctypes.cast(each, pointer) for each in strides)),
    )  # fmt: skip
