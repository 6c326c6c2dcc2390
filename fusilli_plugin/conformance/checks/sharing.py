"""Several plans, handles, threads, processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from fusilli_plugin.conformance.bench import Bench, check
from fusilli_plugin.conformance.findings import BrokenRule, NotTried

_THREADS = 4
_ROUNDS = 5
_CHILD_SECONDS = 60


@check("plans")
def plans(bench: Bench) -> str:
    """Several plans at a time, executed in turns, destroyed in another order."""
    subject = bench.subject
    first, second = subject.handle(), subject.handle()
    found = bench.claimed(first, 4)
    made = [bench.trial(handle, claimed) for claimed in found for handle in (first, second)]
    trials = [each.__enter__() for each in made]
    for number in range(2):
        for trial in trials if number else reversed(trials):
            trial.go("one of several plans")
    for trial, handle in zip(trials, (second, first) * len(found), strict=True):
        trial.go("on another handle than the plan's", handle=handle)
    for index in (*range(1, len(made), 2), *range(0, len(made), 2)):
        made[index].__exit__(None, None, None)
    for each in (first, second):
        subject.call("Destroy", each)
    return f"{len(made)} plans on two handles"


@check("threads")
def threads(bench: Bench) -> str:
    """Threads with handles of their own: asking, building and executing at once."""
    subject = bench.subject
    bench.claimed(subject.handle(), 1)

    def work(number: int) -> None:
        handle = subject.handle()
        for claimed in bench.claimed(handle, 3):
            with bench.trial(handle, claimed) as trial:
                for _ in range(_ROUNDS):
                    trial.go(f"in thread {number}")
        subject.call("Destroy", handle)

    _in_threads(work)
    return f"{_THREADS} threads"


@check("threads-one-plan")
def threads_one_plan(bench: Bench) -> str:
    """Threads that execute one plan, each on a handle of its own."""
    subject = bench.subject
    owner = subject.handle()
    (claimed,) = bench.claimed(owner, 1)
    context = subject.build(owner, claimed.engine, claimed.data)

    def work(number: int) -> None:
        handle = subject.handle()
        with bench.trial(handle, claimed, context=context) as trial:
            for _ in range(_ROUNDS * 4):
                trial.go(f"one plan in thread {number}")
        subject.call("Destroy", handle)

    _in_threads(work)
    subject.destroy_context(owner, context)
    subject.call("Destroy", owner)
    return f"{_THREADS} threads, {claimed.sample.name}"


def _in_threads(work: Callable[[int], None]) -> None:
    """Run it in several threads; what one raises is raised here."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(_THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    broken = [error for error in errors if not isinstance(error, NotTried)]
    for error in broken or errors:
        raise error


@check("fork")
def fork(bench: Bench) -> str:
    """A child of a process that uses it gets an error or a right result; the parent goes on."""
    subject = bench.subject
    handle = subject.handle()
    (claimed,) = bench.claimed(handle, 1)
    with bench.trial(handle, claimed) as trial:
        trial.go("before the fork")
        trial.fill()
        bench.say("executing in a forked child")
        child = os.fork()
        if child == 0:
            signal.alarm(_CHILD_SECONDS)
            status = 1
            try:
                if trial.status():
                    status = 2
                else:
                    trial.judge("in a forked child")
                    status = 0
            finally:
                os._exit(status)
        code = _waited(child)
        if code < 0:
            raise BrokenRule(f"a forked child that executes a plan ends with {signal.Signals(-code).name}")
        if code == 1:
            raise BrokenRule("a forked child that executes a plan is told of success, and the result is wrong")
        trial.go("after the fork")
    subject.call("Destroy", handle)
    return "the child is right" if code == 0 else "the child gets an error"


def _waited(child: int) -> int:
    """The exit code of a child, negative for a signal."""
    end = time.monotonic() + _CHILD_SECONDS + 10
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise BrokenRule("a forked child that executes a plan hangs")
