"""Scenarios for the provider's life in a process of their own: ``python -m tests.fusilli_plugin.ort_ep.life NAME``."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import fusilli_plugin
from fusilli_plugin.ort_ep import nodes
from tests.fusilli_plugin.ort_ep.models import add, conv_relu, reference, session

FEEDS = add().feeds()
WANT = FEEDS["a"] + FEEDS["b"]


def right(made: Any) -> bool:
    return bool((made.run(None, FEEDS)[0] == WANT).all())


def twenty_sessions() -> None:
    for _ in range(20):
        made = session(add())
        assert right(made)
        del made
    gc.collect()
    assert not nodes._alive, nodes._alive


def flat_memory() -> None:
    """What 200 sessions and 20000 runs leave behind."""
    assert right(session(add()))
    sizes: list[int] = []
    for _ in range(4):
        for _ in range(50):
            assert right(session(add()))
        gc.collect()
        sizes.append(resident())
    made = session(add())
    for _ in range(2):
        for _ in range(10000):
            made.run(None, FEEDS)
        sizes.append(resident())
    assert sizes[3] - sizes[0] < 8 << 20, sizes
    assert sizes[5] - sizes[4] < 1 << 20, sizes


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def threads() -> None:
    """Twelve threads: a session for all, one for each, and sessions made at the same time."""
    shared = session(conv_relu(batch="n"))
    checks = {size: conv_relu(batch="n").feeds(size, {"n": size}) for size in (1, 2, 3)}
    wants = {size: reference(conv_relu(batch="n"), feeds)[0] for size, feeds in checks.items()}

    def work(number: int) -> bool:
        own = session(add())
        for turn in range(50):
            size = (number + turn) % 3 + 1
            got = shared.run(None, checks[size])[0]
            np.testing.assert_allclose(got, wants[size], rtol=1e-5, atol=1e-6)
            assert right(own)
        return True

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(12)))


def register_again() -> None:
    for _ in range(5):
        made = session(add())
        assert right(made)
        del made
        gc.collect()
        fusilli_plugin.unregister_ep()
        assert not [device for device in ort.get_ep_devices() if device.ep_name == "HipDNNExecutionProvider"]
        fusilli_plugin.register_ep(cpu=True)
    ort.register_execution_provider_library("Another", fusilli_plugin.library_path())
    ort.unregister_execution_provider_library("Another")
    assert right(session(add()))


def fork() -> None:
    made = session(add())
    assert right(made)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if right(made) and right(session(add())) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert right(made)


_kept: list[Any] = []


def exit_with_sessions() -> None:
    _kept.append(session(add()))
    assert right(_kept[0])

    class AtExit:
        def __del__(self) -> None:
            del _kept[:]

    _kept.append(AtExit())


def exit_with_thread() -> None:
    made = session(add())
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.001):
            right(made)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.5)
    done.set()
    thread.join()


def interrupts() -> None:
    """Ctrl-C reaches the program wherever it comes, and no run that returns is wrong for it."""
    made = session(add(), strict="1")
    given = [add().feeds(seed) for seed in range(8)]
    wants = [feeds["a"] + feeds["b"] for feeds in given]
    failures: list[str] = []
    armed = threading.Event()

    def press() -> None:
        for number in range(200):
            armed.wait()
            armed.clear()
            time.sleep(number % 20 * 1e-4)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    for _ in range(200):
        armed.set()
        end = time.monotonic() + 20
        try:
            while time.monotonic() < end:
                for feeds, want in zip(given, wants, strict=True):
                    try:
                        got = made.run(None, feeds)[0]
                    except Exception as error:  # it came while the group ran: the run fails, and then it is raised
                        failures.append(str(error))
                    else:
                        assert (got == want).all()
        except KeyboardInterrupt:
            continue
        raise AssertionError("Ctrl-C was lost")
    assert right(made)
    assert all(text.endswith("HipDNNExecutionProvider: interrupted") for text in failures), failures


def errors_everywhere() -> None:
    """An error in a function that ONNX Runtime calls is an error of the caller's or one in the log; never a crash."""
    from fusilli_plugin.ort_ep import devices, provider

    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("broken on purpose")

    def during(owner: Any, name: str, action: Callable[[], object], *, raises: bool) -> None:
        original = getattr(owner, name)
        setattr(owner, name, broken)
        try:
            with pytest.raises(Exception, match="broken on purpose") if raises else nullcontext():
                action()
        finally:
            setattr(owner, name, original)

    def again() -> None:
        fusilli_plugin.unregister_ep()
        fusilli_plugin.register_ep(cpu=True)

    def make() -> object:
        return session(add())

    def make_context() -> object:
        with tempfile.TemporaryDirectory() as folder:
            settings = ort.SessionOptions()
            settings.add_session_config_entry("ep.context_enable", "1")
            settings.add_session_config_entry("ep.context_file_path", f"{folder}/compiled.onnx")
            settings.add_provider_for_devices(fusilli_plugin.ep_devices("cpu"), {})
            return ort.InferenceSession(add().data(), settings, enable_fallback=0)

    made, model = session(add()), conv_relu(batch="n")
    # in a session that is not strict, ONNX Runtime's kernels would take over
    by_shape = partial(session(model, strict="1").run, None, model.feeds(0, {"n": 1}))
    during(nodes.ShapePlan, "run", by_shape, raises=True)
    during(nodes.CompiledNode, "plan_for", by_shape, raises=True)
    during(nodes.ShapePlan, "launcher", make, raises=True)
    if hasattr(made, "set_ep_dynamic_options"):
        during(provider.Provider, "set_options", partial(fusilli_plugin.ep_report, made), raises=True)
    during(provider.Provider, "compile", make, raises=True)
    during(provider.Provider, "capability", make, raises=False)
    during(provider.Provider, "close", make, raises=False)
    during(nodes.CompiledNode, "close", make, raises=False)
    during(provider.Provider, "context_nodes", make_context, raises=True)
    during(provider.Provider, "compatibility_text", make_context, raises=False)
    during(provider, "engines_for", make, raises=True)
    during(devices, "chosen", make, raises=True)
    del made, by_shape
    gc.collect()
    during(devices, "offer", again, raises=True)
    during(devices, "check", again, raises=True)
    again()
    assert right(session(add()))


def library_by_hand() -> None:
    """Without `register_ep`; the environment lets the CPU in."""
    ort.register_execution_provider_library("HipDNN", fusilli_plugin.library_path())
    assert right(session(add()))


SCENARIOS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        twenty_sessions, flat_memory, threads, register_again, fork, exit_with_sessions, exit_with_thread,
        errors_everywhere, interrupts, library_by_hand,
    )
}  # fmt: skip


if __name__ == "__main__":
    name = sys.argv[1]
    if name != "library_by_hand":
        fusilli_plugin.register_ep(cpu=True)
    SCENARIOS[name]()
    print("fine")
