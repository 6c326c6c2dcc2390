"""From a graph, or MLIR text, to code: cache, emission and compilation in workers, failures with a reproducer.

Nothing here imports MLIR or the compiler; a cache hit starts no process, and does not load what would.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache as memoize
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from graph_api import CompileError, Graph, GraphError, NotSupportedError
from iree_bridge.compile import tuned, versions
from iree_bridge.compile.cache import Cache, Code, Refusal, key_of
from iree_bridge.compile.once import Flights
from iree_bridge.compile.options import CompileMode, Options, TuneMode
from iree_bridge.targets.cpu import missing_features
from iree_bridge.targets.target import Target, buffer_alignment
from iree_bridge.targets.variants import FUSED_PADDING, PROCESS_FLAGS, Variant, candidates, named, variants

if TYPE_CHECKING:
    from iree_bridge.compile.pool import Reply
    from iree_bridge.compile.reproducer import Reproducer

__all__ = [
    "CompiledCode",
    "EmittedIr",
    "Recipe",
    "cache_for",
    "compile_assembly",
    "compile_code",
    "compile_mlir",
    "emit",
    "given",
    "inspect",
    "inspect_ir",
    "known_refusal",
    "lower",
    "recipe_for",
    "recipes_for",
    "replay",
    "save_wrong",
]

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_OF_THE_FORM: Final = {"refused", "crash", "memory", "timeout"}
"""Kinds of failures that another form of the graph need not have."""
_LEAST_SECONDS: Final = 60.0
_MESSAGE_LINES: Final = 18
_FEW_LINES: Final = 3
_LINE_WIDTH: Final = 300
_REPRODUCER: Final = "reproducer: "
_COMPLAINT: Final = re.compile(r"\berror:|^ERROR\b|LLVM ERROR")
# Signs that the machine was at fault and not the text; the same text may compile another time.
_MACHINE: Final = re.compile(
    r"failed to link|linking failed|linker|No space left|Too many open files|Input/output error|Permission denied"
    r"|temporarily unavailable|out of memory|Cannot allocate|bad_alloc|No such file|Quota exceeded",
    re.IGNORECASE,
)
# Kernels are named after the operations in them, and padding is none of those.
_LONE_PADDING: Final = re.compile(rb"main\$async_dispatch_\d+\.kd")
_NODE: Final = re.compile(r'^loc\("([^"]*)"\): ')
_NOT_TELLING: Final = re.compile(r"^\s*(#\d+ |Stack dump|PLEASE submit|\d+\.\s+Program arguments|\s*$)")


class CompiledCode(NamedTuple):
    """Code for one target.

    Attributes:
        vmfb: the module that the runtime loads.
        target: what it is for.
        flags: compiler flags that it was made with, the global ones last.
        key: its key in the second level of the cache.
        from_cache: False if it was compiled by this call.
        dispatches: kernel launches per run, None if the compiler did not say.
        seconds: what its compile took, whenever that was.
        form: name of the variant that it was emitted and compiled in; empty for MLIR text.
    """

    vmfb: bytes
    target: Target
    flags: tuple[str, ...]
    key: str
    from_cache: bool
    dispatches: int | None
    seconds: float
    form: str = ""

    @property
    def alignment(self) -> int:
        """Bytes of which the code expects the addresses of its arguments to be multiples."""
        return buffer_alignment(self.flags)

    def missing(self) -> tuple[str, ...]:
        """Processor extensions that the code may use and this machine lacks."""
        return () if self.target.is_gpu else missing_features(self.target.needs(self.flags))


class EmittedIr(NamedTuple):
    """MLIR of a graph: without locations (what keys are made of), and with locations named after the nodes."""

    ir: str
    located_ir: str


class Recipe(NamedTuple):
    """How IR is compiled.

    Attributes:
        target: what for.
        flags: of the compiler's session.
        global_flags: of the compiler's process.
        form: name of the graph's variant that these are of, which IR is emitted for; empty for MLIR text.
    """

    target: Target
    flags: tuple[str, ...]
    global_flags: tuple[str, ...] = ()
    form: str = ""

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The process's, then the session's."""
        return (*self.global_flags, *self.flags)


class _Job(NamedTuple):
    """One compile and what its failure report needs.

    Attributes:
        is_last: there is no other form to try.
    """

    name: str
    recipe: Recipe
    options: Options
    graph_json: str | None = None
    is_last: bool = True

    @property
    def timeout(self) -> float:
        """Seconds that it may take: where there is another form, a fifth of what the last one may, but a minute."""
        whole = self.options.timeout
        return whole if self.is_last else min(whole, max(_LEAST_SECONDS, whole / 5))

    @property
    def what(self) -> str:
        """How messages call it."""
        return f"{'graph' if self.graph_json is not None else 'module'} '{self.name}'"


def compile_code(
    graph: Graph,
    target: Target,
    options: Options | None = None,
    *,
    refresh: bool = False,
    form: str | None = None,
) -> CompiledCode:
    """The code of a validated graph for ``target``: from the cache, or compiled in a worker.

    Where the compiler fails on the first of the graph's variants, the next one is taken, and so on. That it refuses all
    of them is in the cache as well: the error then says so, and nothing is compiled.
    Threads and processes that ask for the same code at the same time share one compile.

    Args:
        graph: a graph; it is validated if it is not yet.
        target: what to compile for.
        options: default: ``Options.from_env()``.
        refresh: compile even if the cache has the code, e.g. since the runtime refused it.
        form: name of the one form to compile in; default: those of `recipes_for`, until one can be compiled.

    Raises:
        GraphError: the graph is not valid.
        NotSupportedError: the emitter declines the graph, or it has no such form.
        CompileError: the compiler failed, or must not be started.
        UntrustedCacheError: others can write to the cache folder.
    """
    options = Options.or_env(options)
    graph.validate()
    recipes = (recipe_for(graph, target, options, form=form),) if form else recipes_for(graph, target, options)
    recipe = recipes[0]
    store = cache_for(options)
    graph_key = _graph_key(graph, recipes)
    found = None if refresh else _look_up(store, graph_key, recipe)
    if found is not None:
        return found
    text = graph.to_json()
    job = _Job(graph.name, recipe, options, text)
    refusal_key = _refusal_key(graph_key, text)
    if not refresh:
        _raise_kept_refusal(store, refusal_key, job)
    if options.compile is CompileMode.NEVER:
        _raise_not_cached(job.what, target, "graph", graph_key, options)

    def make() -> CompiledCode:
        with store.lock(graph_key, 2 * options.timeout):
            code = None if refresh else _look_up(store, graph_key, recipe)
            if code is not None:
                return code
            if not refresh:
                _raise_kept_refusal(store, refusal_key, job)
            with _kept_refusal(store, refusal_key):
                return _first_of(
                    recipes,
                    job,
                    lambda each: _compile_ir(_emit(each), each, store, graph_key=graph_key, refresh=refresh),
                )

    return _flights.share((store.root, graph_key), make)


def compile_mlir(
    text: str,
    target: Target,
    options: Options | None = None,
    *,
    flags: Sequence[str] = (),
    global_flags: Sequence[str] = (),
    name: str = "module",
    refresh: bool = False,
) -> CompiledCode:
    """The code of MLIR text for ``target``: from the cache, or compiled in a worker.

    Args:
        text: MLIR assembly; its locations are part of the key.
        target: what to compile for.
        options: default: ``Options.from_env()``.
        flags: compiler flags after those of the target.
        global_flags: flags that are global to the compiler's process, after those of the target.
        name: how messages call the module.
        refresh: compile even if the cache has the code.

    Raises:
        CompileError: the compiler failed, or must not be started.
        UntrustedCacheError: others can write to the cache folder.
    """
    options = Options.or_env(options)
    session = (*target.flags(), *flags, *options.extra_flags)
    recipe = Recipe(target, session, (*target.global_flags(), *global_flags))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CompileError(f"module '{name}' is no text that can be written as UTF-8: {error}") from None
    ir, job, store = EmittedIr(text, text), _Job(name, recipe, options), cache_for(options)
    key = _code_key(ir, recipe)
    refusal_key = _refusal_key(key, f"{name}\0{text}")
    if not refresh:
        found = _load(store, key, recipe)
        if found is not None:
            return found
        _raise_kept_refusal(store, refusal_key, job)
    with _kept_refusal(store, refusal_key):
        return _compile_ir(ir, job, store, refresh=refresh)


def emit(graph: Graph, target: Target, options: Options | None = None, *, form: str | None = None) -> EmittedIr:
    """The IR of a graph, emitted in a worker.

    Args:
        graph: a graph; it is validated if it is not yet.
        target: what to emit for.
        options: default: ``Options.from_env()``.
        form: name of the variant; default: the first of the graph's.

    Raises:
        GraphError, NotSupportedError, CompileError: as ``compile_code``.
    """
    options = Options.or_env(options)
    graph.validate()
    return _emit(_Job(graph.name, recipe_for(graph, target, options, form=form), options, graph.to_json()))


def inspect(graph: Graph, target: Target, options: Options) -> Mapping[str, Any]:
    """As ``inspect_ir`` of the graph's IR, in the first variant that the compiler can do, with its name as ``form``.

    Raises:
        GraphError, NotSupportedError, CompileError: as ``compile_code``.
    """
    graph.validate()
    recipes = recipes_for(graph, target, options)
    job = _Job(graph.name, recipes[0], options, graph.to_json())

    def make(job: _Job) -> Mapping[str, Any]:
        return _request_compile(_emit(job), job, inspect=True).header | {"form": job.recipe.form}

    return _first_of(recipes, job, make)


def inspect_ir(ir: EmittedIr, recipe: Recipe, options: Options, *, name: str = "module") -> Mapping[str, Any]:
    """Compile and return the worker's facts: ``dispatches``, and ``facts``, one entry per kernel of an AMD target.

    Raises:
        CompileError: the compiler failed.
    """
    return _request_compile(ir, _Job(name, recipe, options), inspect=True).header


def compile_assembly(
    graph: Graph, target: Target, options: Options | None = None, *, form: str | None = None
) -> tuple[CompiledCode, str]:
    """The code of a graph for an AMD target, and the assembly of its kernels. Compiled anew: the cache has no assembly.

    Args:
        graph: valid.
        target: of AMD.
        options: default: ``Options.from_env()``.
        form: as for ``compile_code``.

    Raises:
        GraphError, NotSupportedError, CompileError: as ``compile_code``.
    """
    options = Options.or_env(options)
    graph.validate()
    recipes = (recipe_for(graph, target, options, form=form),) if form else recipes_for(graph, target, options)

    def make(job: _Job) -> tuple[CompiledCode, str]:
        ir = _emit(job)
        reply = _request_compile(ir, job, inspect=True)
        size = reply.header["vmfb_size"]
        code = _code(replace(reply, payload=reply.payload[:size]), job.recipe, _code_key(ir, job.recipe))
        return code, reply.payload[size:].decode("utf-8", "replace")

    return _first_of(recipes, _Job(graph.name, recipes[0], options, graph.to_json()), make)


def lower(text: str, target: Target, phase: str, options: Options | None = None) -> str:
    """The IR after a phase of the compiler, e.g. ``flow`` or ``executable-sources``.

    Raises:
        CompileError: the compiler failed.
    """
    options = Options.or_env(options)
    recipe = Recipe(target, (*target.flags(), *options.extra_flags), target.global_flags())
    reply = _request_compile(EmittedIr(text, text), _Job("module", recipe, options), phase=phase)
    return reply.payload.decode("utf-8", "replace")


def known_refusal(graph: Graph, target: Target, options: Options) -> str:
    """What is kept of the compiler's refusal of a graph, so that nobody has to ask it again; "" if nothing is.

    Raises:
        UntrustedCacheError: others can write to the cache folder.
    """
    store = cache_for(options)
    if not store.has_refusals():
        return ""
    key = _refusal_key(_graph_key(graph, recipes_for(graph, target, options)), graph.to_json())
    kept = store.refusal(key)
    return "" if kept is None else f"{kept.message.splitlines()[0]} (remembered; remove {kept.path} to try again)"


def replay(failed: Reproducer, options: Options | None = None) -> CompiledCode:
    """Compile a saved failure again, with its flags and without the cache; no new reproducer is written.

    Raises:
        CompileError: it fails again.
    """
    options = replace(Options.or_env(options), failures=0)
    recipe = Recipe(failed.target, failed.flags, failed.global_flags)
    job = _Job(failed.name, recipe, options, failed.graph_json)
    ir = _emit(job) if failed.ir is None else EmittedIr(failed.ir, failed.ir)
    return _code(_request_compile(ir, job), recipe, _code_key(ir, recipe))


def save_wrong(graph: Graph, code: CompiledCode, problem: str, options: Options) -> Path | None:
    """A reproducer of code that compiles and gives wrong results; the folder, None if none is kept."""
    recipe = recipe_for(graph, code.target, options, form=code.form or None)
    job = _Job(graph.name, recipe, options, graph.to_json())
    return _save(job, f"the code runs and is wrong: {problem}\n", _emit(job))


def given(graph: Graph, target: Target, options: Options, *, form: str | None = None) -> Reproducer:
    """What the compiler is given for a graph: IR with locations, flags, command line. Nothing is compiled.

    Args:
        graph: a graph; it is validated if it is not yet.
        target: what it would be compiled for.
        options: whose further flags it gets.
        form: name of the variant; default: the first of the graph's.

    Raises:
        GraphError, NotSupportedError, CompileError: as ``compile_code``.
    """
    graph.validate()
    job = _Job(graph.name, recipe_for(graph, target, options, form=form), options, graph.to_json())
    return _reproducer(job, "", _emit(job))


def recipes_for(graph: Graph, target: Target, options: Options) -> tuple[Recipe, ...]:
    """How ``graph`` is compiled on ``target``, and how if the compiler fails on that, and so on.

    First comes what was measured to be the fastest here, if it was and ``options.tune`` is not off.
    """
    wanted = variants(graph, target)
    if options.tune is not TuneMode.OFF:
        best = tuned.winner(cache_for(options), graph, target, options.extra_flags)
        wanted = wanted if best is None else (best, *(it for it in wanted if it.name != best.name))
    return tuple(_recipe(it, target, options) for it in wanted)


def recipe_for(graph: Graph, target: Target, options: Options, *, form: str | None = None) -> Recipe:
    """The recipe of the candidate called ``form``, or the first of `recipes_for`.

    Raises:
        NotSupportedError: the graph has no candidate of that name.
    """
    if form is None:
        return recipes_for(graph, target, options)[0]
    variant = named(graph, target, form)
    if variant is None:
        known = ", ".join(it.name for it in candidates(graph, target))
        raise NotSupportedError("", "form", f"graph '{graph.name}' has no form '{form}' on {target}; it has {known}")
    return _recipe(variant, target, options)


def _recipe(it: Variant, target: Target, options: Options) -> Recipe:
    flags = (*target.flags(), *it.flags, *options.extra_flags)
    return Recipe(target, flags, target.global_flags(), it.name)


def cache_for(options: Options) -> Cache:
    """The cache that ``options`` name; one object per process and setting."""
    return _cache(options.cache_dir, options.cache_readonly, options.cache_size)


@memoize
def _cache(root: Path, readonly: tuple[Path, ...], limit: int) -> Cache:
    return Cache(root, readonly=readonly, limit=limit)


def _graph_key(graph: Graph, recipes: Sequence[Recipe]) -> str:
    parts = {
        "graph": graph.canonical_json(),
        "emitter": versions.emitter_version(),
        "variants": "\0".join("\0".join((it.form, *it.all_flags, "")) for it in recipes),
    }
    return key_of("graph", parts | _common_parts(recipes[0]))


def _code_key(ir: EmittedIr, recipe: Recipe) -> str:
    return key_of("code", {"ir": ir.ir, "examiner": versions.examiner_version()} | _common_parts(recipe))


def _refusal_key(key: str, text: str) -> str:
    """Of what the key of code is made of, and of the text with its names: the message that is kept has them."""
    return key_of("refusal", {"entry": key, "names": text})


def _raise_kept_refusal(store: Cache, key: str, job: _Job) -> None:
    """Raise what is kept of an earlier compile of the same text, if the compiler refused it.

    Raises:
        CompileError: it did; the message names the entry.
    """
    kept = store.refusal(key)
    if kept is None:
        return
    folder = Path(kept.reproducer) if kept.reproducer and os.path.isdir(kept.reproducer) else None
    first, *lines = kept.message.splitlines() or [""]
    lines += [] if folder is None else [f"{_REPRODUCER}{folder}"]
    lines.append(f"nothing was compiled now; to compile it again, remove {kept.path}")
    _LOG.info("%s is not compiled again: %s", job.what, kept.path)
    raise CompileError("\n".join([f"{first} (remembered from an earlier compile)", *lines]), folder, "refused")


@contextlib.contextmanager
def _kept_refusal(store: Cache, key: str) -> Iterator[None]:
    """Keep it if the compiler refuses what is compiled inside."""
    try:
        yield
    except CompileError as error:
        if error.kind != "refused":
            raise
        lines = str(error).splitlines()
        message = "\n".join(line for line in lines if not line.startswith(_REPRODUCER))
        store.refuse(key, Refusal(message, str(error.reproducer or "")))
        raise


def _common_parts(recipe: Recipe) -> dict[str, str]:
    return {
        "flags": "\0".join(recipe.flags),
        "global flags": "\0".join(recipe.global_flags),
        "files": "\0".join(_content(flag) for flag in recipe.all_flags),
        "target": f"{recipe.target} {recipe.target.features}",
        "iree": versions.iree_version(),
    }


def _content(flag: str) -> str:
    """Hash of the file that a flag names, a tuning specification say: code depends on what is in it."""
    path = flag.partition("=")[2]
    if not path.startswith("/") or not os.path.isfile(path):
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _look_up(store: Cache, graph_key: str, recipe: Recipe) -> CompiledCode | None:
    code_key = store.code_key(graph_key)
    return None if code_key is None else _load(store, code_key, recipe)


def _load(store: Cache, code_key: str, recipe: Recipe) -> CompiledCode | None:
    code = store.code(code_key)
    if code is None:
        return None
    flags, dispatches, seconds = (code.facts.get(name) for name in ("flags", "dispatches", "seconds"))
    return CompiledCode(
        vmfb=code.vmfb,
        target=recipe.target,
        flags=tuple(map(str, flags)) if isinstance(flags, list) else recipe.all_flags,
        key=code_key,
        from_cache=True,
        dispatches=dispatches if isinstance(dispatches, int) else None,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        form=str(code.facts.get("form", recipe.form)),
    )


def _raise_not_cached(what: str, target: Target, level: str, key: str, options: Options) -> NoReturn:
    raise CompileError(
        f"{what} is not in the cache for target {target} and FUSILLI_COMPILE=never forbids to compile it; "
        f"looked for {level} key {key} in {', '.join(map(str, (options.cache_dir, *options.cache_readonly)))}"
    )


def _emit(job: _Job) -> EmittedIr:
    assert job.graph_json is not None
    header = {"op": "emit", "target": asdict(job.recipe.target), "form": job.recipe.form}
    # No flag matters to it, but what it gives is compiled next: workers of another kind would push each other out.
    process = _split(job.recipe)[1]
    reply = _ask(job, header, job.graph_json.encode(errors="backslashreplace"), global_flags=process, any_flags=True)
    if not reply.header["ok"]:
        _raise_own(reply)
        _fail(job, f"emitting its IR failed: {reply.header['message']}", reply, None)
    size = reply.header["ir_size"]
    return EmittedIr(reply.payload[:size].decode(), reply.payload[size:].decode())


def _raise_own(reply: Reply) -> None:
    """Raise again, here, what the emitter raised to decline a graph."""
    header = reply.header
    if header["kind"] == "NotSupportedError":
        raise NotSupportedError(header["node"], header["rule"], header["reason"])
    if header["kind"] == "GraphError":
        raise GraphError(header["message"])


def _compile_ir(
    ir: EmittedIr, job: _Job, store: Cache, *, graph_key: str | None = None, refresh: bool = False
) -> CompiledCode:
    """The code of IR: from the cache, else compiled once, however many threads and processes ask for it.

    Under the lock the cache is looked into again: another process may have stored the code meanwhile.
    """
    recipe, options = job.recipe, job.options
    key = _code_key(ir, recipe)

    def look() -> CompiledCode | None:
        found = None if refresh else _load(store, key, recipe)
        if found is not None and graph_key is not None:
            store.link(graph_key, key)
        return found

    def make() -> CompiledCode:
        with store.lock(key, 2 * options.timeout):
            found = look()
            if found is not None:
                return found
            code = _code(_request_compile(ir, job), recipe, key)
            facts = {"dispatches": code.dispatches, "seconds": code.seconds, "target": str(code.target)}
            facts["form"] = code.form
            store.store(key, Code(code.vmfb, facts | {"flags": code.flags, "name": job.name}), graph_key=graph_key)
            return code

    found = look()
    if found is None and options.compile is CompileMode.NEVER:
        _raise_not_cached(job.what, recipe.target, "code", key, options)
    return found or _flights.share((store.root, key), make)


def _code(reply: Reply, recipe: Recipe, key: str) -> CompiledCode:
    header = reply.header
    seconds = header["seconds"]
    return CompiledCode(
        reply.payload, recipe.target, recipe.all_flags, key, False, header["dispatches"], seconds, recipe.form
    )


def _first_of(recipes: Sequence[Recipe], job: _Job, make: Callable[[_Job], _Result]) -> _Result:
    """What ``make`` makes of the job in the first of ``recipes`` that the compiler can do.

    Raises:
        CompileError: it failed on all of them; what it said of the first, with the names of the others.
    """
    failures: list[CompileError] = []
    for recipe, following in zip(recipes, [*(each.form for each in recipes[1:]), ""], strict=True):
        try:
            return make(job._replace(recipe=recipe, is_last=not following))
        except CompileError as error:
            if error.kind not in _OF_THE_FORM:
                raise
            failures.append(error)
            if following:
                said = " ".join(str(error).splitlines()[:2])
                _LOG.info("form '%s' of %s fails, '%s' is tried: %s", recipe.form, job.what, following, said)
    first = failures[0]
    if len(failures) == 1:
        raise first
    tried = ", ".join(f"'{recipe.form}'" for recipe in recipes[1:])
    # It is kept as a refusal only if nothing was a crash, which another time there may be none of.
    kind = next((error.kind for error in failures if error.kind != "refused"), "refused")
    text = f"{first}\nnor in the other forms that are right for it: {tried}"
    raise CompileError(text, first.reproducer, kind) from failures[-1]


def _request_compile(ir: EmittedIr, job: _Job, *, inspect: bool = False, phase: str | None = None) -> Reply:
    """Have ``ir`` compiled.

    Raises:
        CompileError: that failed; with the messages of the located IR.
    """
    _LOG.info("compiling '%s' for %s", job.name, job.recipe.target)
    header = {"op": "compile", "inspect": inspect, "phase": phase}
    reply = _ask_compile(job, header, ir.ir, ir)
    if not reply.header["ok"] and reply.header["kind"] == "RejectedError" and ir.located_ir != ir.ir:
        # Locations end up in the code, so they are used only where their node names are wanted.
        located = _ask_compile(job, header, ir.located_ir, ir)
        reply = reply if located.header["ok"] else located
    if not reply.header["ok"]:
        _fail(job, reply.header["message"], reply, ir)
    complaints = [line for line in reply.stderr.splitlines() if _COMPLAINT.search(line)]
    if split := reply.header["split_barriers"]:
        problem = f"not all waves reach a barrier of {', '.join(split)}, which gives wrong results"
        _report(job, problem, [], reply.stderr, ir, "refused")
    if endless := reply.header["endless_kernels"]:
        problem = f"the compiler took all of {', '.join(endless)} for unreachable"
        _report(job, problem, [], reply.stderr, ir, "refused")
    if lost := reply.header["lost_sums"]:
        problem = f"{', '.join(lost)} leaves out what other subgroups than the first have summed"
        _report(job, problem, [], reply.stderr, ir, "refused")
    crowded = reply.header["crowded_kernels"]
    if crowded and job.recipe.target.backend == "cuda":  # launches for AMD are ours, which take any number
        problem = f"{', '.join(crowded)} has more tensors than IREE's driver takes"
        _report(job, problem, [], reply.stderr, ir, "refused")
    if FUSED_PADDING in job.recipe.flags and _LONE_PADDING.search(reply.payload):
        _report(job, "a kernel does nothing but pad, which the compiler makes wrong", [], reply.stderr, ir, "refused")
    if complaints:
        # A faulty pass pipeline, for one, is printed and then left out: the code would not be what was asked for.
        _fail(job, "the compiler reported an error and went on", reply, ir)
    _LOG.info("compiled '%s' in %.2f s, %s dispatches", job.name, reply.header["seconds"], reply.header["dispatches"])
    return reply


def _ask_compile(job: _Job, header: dict[str, Any], text: str, ir: EmittedIr) -> Reply:
    while True:
        flags, process = _split(job.recipe)
        reply = _ask(job, header | {"flags": flags}, text.encode(), ir=ir, global_flags=process)
        if reply.header["ok"] or reply.header["kind"] != "UnknownFlagError":
            return reply
        # Some flags are no session's but the process's; which ones can only be found out.
        _global_names.add(str(reply.header["flag"]).partition("=")[0])


_global_names = set(PROCESS_FLAGS)


def _split(recipe: Recipe) -> tuple[list[str], list[str]]:
    """What a session is told, and what its process is, as far as it is known which flags are a process's."""
    told = {True: list[str](), False: list[str]()}
    for flag in recipe.flags:
        told[flag.partition("=")[0] in _global_names].append(flag)
    return told[False], _with_level(_last_of_each((*recipe.global_flags, *told[True])), told[False])


def _last_of_each(flags: Iterable[str]) -> list[str]:
    """The compiler takes a flag of the process once."""
    return list({flag.partition("=")[0]: flag for flag in flags}.values())


def _with_level(global_flags: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Flags of the process, with the sessions' level of optimisation.

    Once a process has flags of its own, its level stands for what the sessions do not say one by one, and theirs is
    without effect: a layer norm became two dispatches (``docs/performance.md``).
    """
    level = [flag for flag in flags if flag.startswith("--iree-opt-level=")][-1:]
    return [*global_flags, *level] if global_flags else []


def _ask(
    job: _Job,
    header: dict[str, Any],
    payload: bytes,
    *,
    ir: EmittedIr | None = None,
    global_flags: Sequence[str],
    any_flags: bool = False,
) -> Reply:
    if job.options.compile is CompileMode.NEVER:
        raise CompileError(f"'{job.name}' needs a compile worker and FUSILLI_COMPILE=never forbids to start one")
    from iree_bridge.compile.pool import WorkerError, pool

    try:
        workers = pool(job.options)
        return workers.request(header, payload, timeout=job.timeout, global_flags=global_flags, any_flags=any_flags)
    except WorkerError as failure:
        _report(job, str(failure), [], failure.stderr, ir, failure.kind)


def _fail(job: _Job, problem: str, reply: Reply, ir: EmittedIr | None) -> NoReturn:
    diagnostics = [(str(severity), str(text)) for severity, text in reply.header["diagnostics"]]
    said = "\n".join([*(text for _, text in diagnostics), reply.stderr])
    is_refusal = reply.header.get("kind") == "RejectedError" and not _MACHINE.search(said)
    _report(job, problem, diagnostics, reply.stderr, ir, "refused" if is_refusal else "")


def _report(
    job: _Job,
    problem: str,
    diagnostics: Sequence[tuple[str, str]],
    stderr: str,
    ir: EmittedIr | None,
    kind: str = "",
) -> NoReturn:
    """Save a reproducer and raise the error that names it."""
    text = "".join(f"{severity}: {message}\n" for severity, message in diagnostics)
    folder = _save(job, f"{problem}\n{text}{stderr}", ir)
    lines = [f"{job.what} could not be compiled for {job.recipe.target}: {problem}"]
    telling = _telling(diagnostics, stderr)
    shown = _FEW_LINES if folder is not None else _MESSAGE_LINES  # all of it is in the folder
    lines += telling[:shown]
    if len(telling) > shown:
        lines.append(f"  and {len(telling) - shown} further lines" + ("" if folder is None else " in diagnostics.txt"))
    if folder is not None:
        lines.append(f"{_REPRODUCER}{folder}")
    raise CompileError("\n".join(lines), folder, kind)


def _save(job: _Job, diagnostics: str, ir: EmittedIr | None) -> Path | None:
    from iree_bridge.compile import reproducer

    return reproducer.save(
        job.options.cache_dir / "failures", _reproducer(job, diagnostics, ir), keep=job.options.failures
    )


def _reproducer(job: _Job, diagnostics: str, ir: EmittedIr | None) -> Reproducer:
    from iree_bridge.compile import reproducer

    recipe = job.recipe
    return reproducer.Reproducer(
        name=job.name,
        target=recipe.target,
        flags=recipe.flags,
        global_flags=recipe.global_flags,
        graph_json=job.graph_json,
        ir=None if ir is None else ir.located_ir,
        diagnostics=diagnostics,
        versions={"iree-base-compiler": versions.compiler_version(), "emitter": versions.emitter_version()},
    )


def _telling(diagnostics: Sequence[tuple[str, str]], stderr: str) -> list[str]:
    """The lines that say what is wrong: first line of each error, named after its node; what was printed otherwise."""
    errors = [text.splitlines()[0] for severity, text in diagnostics if severity == "error" and text.strip()]
    lines = [_NODE.sub(r"node '\1': ", line) for line in errors]
    if not lines:
        printed = [line.strip() for line in stderr.splitlines() if not _NOT_TELLING.match(line)]
        lines = [line for line in printed if _COMPLAINT.search(line)] or printed[-4:]
    return [f"  {line[:_LINE_WIDTH]}" for line in dict.fromkeys(lines)]


_flights = Flights()
