"""Sessions on a stand-in HIP runtime, each scenario in a process of its own.

``python -m tests.fusilli_plugin.ort_ep.hip_life NAME STANDIN``. Nothing here says how code runs on AMD hardware:
kernels are played by Python. What is shown is devices, streams, copies, allocations and error paths.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import Model
from tests.support.standin_hip.standin import Standin

COUNT = 32


def floats(pointer: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(pointer))


def play_add(name: str, stream: int, arguments: Sequence[int]) -> int:
    """The kernel of an addition: inputs first, then the output."""
    a, b, y = map(floats, arguments)
    y[:] = a + b
    return 0


def model(rows: int | str = 2) -> Model:
    made = Model("add")
    return made.output(made.add("Add", made.input("a", rows, 16), made.input("b", rows, 16)))


def on_gpu(device: str = "hip:0", rows: int | str = 2, **options: str) -> Any:
    settings = ort.SessionOptions()
    settings.add_provider_for_devices(fusilli_plugin.ep_devices(device), {"strict": "1", **options})
    made = ort.InferenceSession(model(rows).data(), settings)
    made.disable_fallback()
    return made


def feeds(seed: int) -> dict[str, np.ndarray]:
    return model().feeds(seed)


def right(made: Any, seed: int = 0) -> None:
    given = feeds(seed)
    np.testing.assert_array_equal(made.run(None, given)[0], given["a"] + given["b"])


def devices(hip: Standin) -> None:
    """Each GPU is a device, by HIP's number; memory and launches go to the one that was chosen."""
    names = [
        found.ep_metadata["device"] for found in ort.get_ep_devices() if found.ep_name == "HipDNNExecutionProvider"
    ]
    assert names == ["hip:0", "hip:1"], names
    assert [found.ep_metadata["device"] for found in fusilli_plugin.ep_devices()] == ["hip:0"]
    made = on_gpu("hip:1")
    hip.take()
    right(made)
    assert {event.device for event in hip.take("launch")} == {1}


def streams_and_copies(hip: Standin) -> None:
    """Two copies in, a launch and a copy out, all on one stream that ONNX Runtime had us make."""
    made = on_gpu()
    right(made, 0)
    right(made, 1)
    hip.take()
    for seed in range(3):
        right(made, seed)
        events = hip.take()
        copies = [event for event in events if event.call == "memcpy"]
        launched = [event for event in events if event.call == "launch"]
        assert len(copies) == 3, [event.call for event in events]
        assert len(launched) == 1
        assert {event.stream for event in (*copies, *launched)} == {launched[0].stream}
        assert launched[0].stream
        assert {event.source for event in copies} & {launched[0].arguments[2]}
        assert {event.pointer for event in copies} >= set(launched[0].arguments[:2])


def memory_comes_back(hip: Standin) -> None:
    made = on_gpu()
    right(made)
    del made
    gc.collect()
    before = hip.live_bytes
    for seed in range(5):
        made = on_gpu()
        right(made, seed)
        del made
        gc.collect()
    assert hip.live_bytes <= before, (hip.live_bytes, before)


def no_allocation_in_runs(hip: Standin) -> None:
    """Runs with their own stream reuse what the pool of that stream has."""
    made = on_gpu()
    binding = made.io_binding()
    given = feeds(0)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, 0x1002) for name, array in given.items()}
    out = ort.OrtValue.ortvalue_from_shape_and_type([2, 16], np.float32, "gpu", 0, 0x1002)
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output(made.get_outputs()[0].name, out)
    made.run_with_iobinding(binding)
    hip.take()
    for _ in range(3):
        made.run_with_iobinding(binding)
    events = hip.take()
    assert not [event for event in events if event.call in ("malloc", "memcpy")], [event.call for event in events]
    (launch, *_) = [event for event in events if event.call == "launch"]
    assert launch.arguments == (values["a"].data_ptr(), values["b"].data_ptr(), out.data_ptr())
    np.testing.assert_array_equal(out.numpy(), given["a"] + given["b"])


def failures(hip: Standin) -> None:
    """What HIP refuses is an error of the run, with HIP's words; the next run is fine."""
    made = on_gpu()
    right(made)
    for call, text in (("memcpy", "hipMemcpy"), ("launch", "add_0")):
        hip.fail(call, 1)
        with pytest.raises(Exception, match=text):
            right(made)
        hip.take()
        right(made)
    for call, text in (("stream_create", "hipStreamCreate"), ("malloc", "[Aa]lloc|memory")):
        hip.fail(call, 2)
        with pytest.raises(Exception, match=text):
            right(on_gpu())
        hip.take()
        right(on_gpu())


def padding(hip: Standin) -> None:
    """One row is padded to two on the device: its copy is made there, and what is done stays on one stream."""
    made = on_gpu(rows="n", shapes="n=2")
    for seed in range(3):
        hip.take()
        given = {name: array[:1] for name, array in feeds(seed).items()}
        np.testing.assert_array_equal(made.run(None, given)[0], given["a"] + given["b"])
        events = hip.take()
        (launched,) = [event for event in events if event.call == "launch"]
        assert {event.stream for event in events if event.call == "memcpy"} == {launched.stream}
        for pointer in launched.arguments[:2]:  # both rows of what the kernel reads are the caller's one
            rows = floats(pointer).reshape(2, 16)
            np.testing.assert_array_equal(rows[0], rows[1])
    right(made)
    (counted,) = fusilli_plugin.ep_report(made).shapes.values()
    assert (counted["a [1, 16], b [1, 16]"].padded, counted["a [2, 16], b [2, 16]"].hits) == (3, 1)
    del made
    gc.collect()


def bound_inputs(hip: Standin) -> None:
    """An input on the device is held against the value that there is code for."""
    row = feeds(5)["b"]
    text = str(row.tolist()).replace(" ", "")
    made = on_gpu(strict="0", inputs=f"b={text}")
    for other in (False, True, False):
        given = {"a": feeds(6)["a"], "b": row + np.float32(other)}
        np.testing.assert_array_equal(made.run(None, given)[0], given["a"] + given["b"])
    (counted,) = fusilli_plugin.ep_report(made).shapes.values()
    assert counted["a [2, 16], b [2, 16]"].fallbacks == 1


SCENARIOS: dict[str, Callable[[Standin], None]] = {
    each.__name__: each
    for each in (
        devices,
        streams_and_copies,
        memory_comes_back,
        no_allocation_in_runs,
        failures,
        padding,
        bound_inputs,
    )
}

if __name__ == "__main__":
    standin = Standin(sys.argv[2])
    standin.play(play_add)
    fusilli_plugin.register_ep()
    SCENARIOS[sys.argv[1]](standin)
    print("fine")
