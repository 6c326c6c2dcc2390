"""Fuzzes what reads foreign bytes: ``python -m tests.support.fuzz [NAME ...] [--seconds S] [--seed N] [--count N]``.

Each parser runs in a process with a limit on its memory. An input may end in the parser's own error; it is a finding if
it ends the process or in any other exception, takes more than `SECONDS` of processor time, waits as long for anything
but a processor, or takes more memory than its parser's `room` and `TIMES` bytes for each of its own. Findings are kept
as files.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support import damage
from tests.support.damage import Damage

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 1.0
ROOM: Final = 16 << 20
TIMES: Final = 64
_SPACE: Final = 3 << 30
"""Bytes of address space that a parser may add to those of its imports."""
_END: Final = 120
"""Seconds after which an input that is still being read ends the process, with a traceback: however busy it is."""
_COMPILE_SECONDS: Final = 6.0
_COMPILE_MEMORY: Final = 2 << 30
_WHOLE: Final = 8
_MAX_POOL: Final = 200
_MAX_INPUT: Final = 2 << 20
"""Bytes; what is larger takes longer than `SECONDS` to be read once."""


@dataclass(frozen=True)
class Parser:
    """Something that reads bytes.

    Attributes:
        seeds: what it understands.
        read: raises one of `errors` for what it does not.
        errors: its own exceptions.
        damage: makes something else of what it understands.
        room: bytes of memory that an input may take, however small it is.
        wait: seconds that it may wait for other processes.
        outcomes: how often what happened, if the parser counts it.
    """

    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    damage: Damage = damage.changed_bytes
    room: int = ROOM
    wait: float = SECONDS
    outcomes: Counter[str] = field(default_factory=Counter)


# ---- parsers


def _graphs() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "tests" / "data" / "hipdnn_graphs").glob("*.bin"))]


def _wire() -> Parser:
    """From bytes to the engine's answer, which is one whatever they are."""
    from fusilli_plugin.engine.engine import FusilliEngine
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import decode_graph, encode_graph
    from iree_bridge import Options
    from tests.hipdnn_backend.wire.strategies import one_of_each_operation

    def read(data: bytes) -> object:
        engine = FusilliEngine("cpu", options=Options(device="cpu", claim="all"))
        engine.support(data)
        return decode_graph(data)

    new = [encode_graph(decode_graph(data)) for data in _graphs()]
    seeds = [*_graphs(), *new, encode_graph(one_of_each_operation())]
    return Parser(seeds, read, (WireError,), damage.tables)


def _json() -> Parser:
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import decode_graph
    from hipdnn_backend.wire.json import graph_from_json, graph_to_json
    from tests.hipdnn_backend.wire.strategies import one_of_each_operation

    graphs = [*map(decode_graph, _graphs()), one_of_each_operation()]
    return Parser(
        [graph_to_json(graph).encode() for graph in graphs],
        lambda data: graph_to_json(graph_from_json(data)), (WireError,), _text_of_json,
    )  # fmt: skip


def _graph_json() -> Parser:
    from fusilli_plugin.engine.importers import import_graph
    from graph_api import FusilliError, Graph
    from hipdnn_backend.wire import decode_graph

    seeds = [import_graph(decode_graph(data)).to_json().encode() for data in _graphs()]
    return Parser(seeds, lambda data: Graph.from_json(data), (FusilliError,), _text_of_json)


def _text_of_json(source: random.Random, data: bytes) -> bytes:
    return damage.document(source, data) if source.random() < 0.7 else damage.changed_bytes(source, data)


def _config() -> Parser:
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import EngineConfig, KnobSetting, decode_engine_config, encode_engine_config

    knobs = tuple(KnobSetting(knob_id=f"knob{n}", value=value) for n, value in enumerate((1, 0.5, "text")))
    seeds = [
        encode_engine_config(EngineConfig(engine_id=5)),
        encode_engine_config(EngineConfig(engine_id=5, knobs=knobs)),
        encode_engine_config(EngineConfig(engine_id=-1, knobs=knobs * 30)),
    ]
    return Parser(seeds, decode_engine_config, (WireError,), damage.tables)


def _compiled(number: int = 0) -> bytes:
    from fusilli_plugin.engine.importers import import_graph
    from hipdnn_backend.wire import decode_graph
    from iree_bridge import Target
    from iree_bridge.artifact.artifact import compile_artifact

    graph = import_graph(decode_graph(_graphs()[number]))
    return compile_artifact(graph, [Target.parse("cpu")]).to_bytes()


def _artifact() -> Parser:
    from iree_bridge.artifact.artifact import Artifact, ArtifactError

    return Parser([_compiled(), _compiled(1)], Artifact.from_bytes, (ArtifactError,), damage.archive)


def _plan() -> Parser:
    """As an engine restores it: the damage may have the right digests, but for that of code, which is trusted then."""
    from fusilli_plugin.engine.engine import FusilliEngine
    from fusilli_plugin.engine.plan_frame import seal
    from fusilli_plugin.fallback.ort_engine import OnnxRuntimeEngine
    from hipdnn_backend.errors import EngineError
    from hipdnn_backend.wire import EngineConfig
    from iree_bridge import Options

    compiling = FusilliEngine("cpu", options=Options(device="cpu", claim="all"))
    running = OnnxRuntimeEngine("cpu")
    header = 52

    def read(data: bytes) -> object:
        try:
            compiling.restore(data).close()
        except EngineError:
            running.restore(data)

    def damaged(source: random.Random, data: bytes) -> bytes:
        if source.random() < 0.2 or len(data) <= header:
            return damage.tables(source, data[:header]) + data[header:]
        new = damage.archive(source, data[header:], code=("code.vmfb",))
        return seal(new) if source.random() < 0.8 else data[:header] + new

    seeds = [compiling.build(data, EngineConfig(engine_id=compiling.id)).serialize() for data in _graphs()[:2]]
    return Parser(seeds, read, (EngineError,), damaged)


def _saved() -> list[bytes]:
    from hipdnn_backend.offload.program.package import save_package
    from tests.hipdnn_backend.offload.test_package import variant

    with tempfile.TemporaryDirectory() as folder:
        save_package(Path(folder, "m"), "m", [variant("cpu"), variant("gfx942")])
        return [Path(folder, "m").read_bytes()]


def _package() -> Parser:
    from hipdnn_backend.offload.program.package import Package, PackageError

    path = Path(tempfile.mkdtemp(prefix="fuzz-"), "model")

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return Package.open(path).variant("cpu")

    return Parser(_saved(), read, (PackageError,), damage.archive)


def _ep_context() -> Parser:
    from fusilli_plugin.ort_ep.context import restore
    from graph_api import FusilliError
    from hipdnn_backend.offload.errors import OffloadError
    from tests.hipdnn_backend.fake_plans import FakeEngine

    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))

    def read(data: bytes) -> object:
        """Of a node that holds it, and of one that names a file by it."""
        named = {"embed_mode": 0, "ep_cache_context": data[:80], "partition_name": data[:20]}
        for attributes in (named, {"embed_mode": 1, "ep_cache_context": data, "partition_name": b"p"}):
            try:
                made = restore(attributes, str(folder / "model.onnx"), "cpu", [FakeEngine()])
            except (FusilliError, OffloadError) as error:
                refused = error
            else:
                return made
        raise refused

    return Parser(_saved(), read, (FusilliError, OffloadError), damage.archive)


def _onnx() -> Parser:
    from hipdnn_backend.offload.errors import ModelError
    from hipdnn_backend.offload.frontend import prepare
    from tests.support.hostile_models import seeds

    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 256)

    def read(data: bytes) -> object:
        (folder / "model.onnx").write_bytes(data)
        return prepare(folder / "model.onnx")

    return Parser(seeds(), read, (ModelError,), damage.onnx_model, 96 << 20)  # what folding may make is in it


def _mlir() -> Parser:
    from hipdnn_backend.offload.errors import ModelError
    from hipdnn_backend.offload.frontend.mlir_text import load_text
    from hipdnn_backend.offload.mlir import new_context
    from tests.support.passes import TWO_CONVS

    path, context = Path(tempfile.mkdtemp(prefix="fuzz-"), "model.mlir"), new_context()
    relu = "func.func @f(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {\n" + (
        '  %0 = torch.aten.relu %a : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32> loc("r"("x"))\n'
        "  return %0 : !torch.vtensor<[2],f32>\n}\n"
    )
    literal = "func.func @g(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {\n" + (
        "  %w = torch.vtensor.literal(dense<[1.0, 2.0]> : tensor<2xf32>) : !torch.vtensor<[2],f32>\n"
        '  %0 = torch.operator "onnx.Add"(%a, %w) : (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) -> '
        "!torch.vtensor<[2],f32>\n  return %0 : !torch.vtensor<[2],f32>\n}\n"
    )

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return load_text(path, context)

    return Parser([relu.encode(), TWO_CONVS.encode(), literal.encode()], read, (ModelError,), damage.program_text)


def _frames() -> Parser:
    from iree_bridge.compile import messages

    seeds = []
    for payload in (b"payload", b""):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            messages.send(ours, {"op": "compile", "flags": ["a"], "n": 1, "of": {"a": [1, None, "b"]}}, payload)
            seeds.append(theirs.recv(1 << 16))

    def read(data: bytes) -> object:
        left, right = socket.socketpair()
        with left, right:
            left.sendall(data[:100_000])
            left.close()
            return messages.receive(right, deadline=time.monotonic() + 5)

    return Parser(seeds, read, (messages.PeerGoneError, TimeoutError), damage.frame)


def _torch() -> Parser:
    """Texts of custom operations that pass our checks, and what the compiler's worker makes of them."""
    from graph_api import FusilliError, Graph
    from graph_api.ops.custom_op import CustomOpNode
    from iree_bridge.emit.custom.template import CustomTextError, checked_text
    from tests.support import hostile_texts

    def checked(data: bytes) -> Graph:
        graph = hostile_texts.graph_of(data)
        (node,) = graph.nodes
        assert isinstance(node, CustomOpNode)
        checked_text(node, "f")
        return graph

    errors = (FusilliError, CustomTextError)
    return _compiling(hostile_texts.seeds(), checked, errors, hostile_texts.Texts())


def _emitted() -> Parser:
    """Graphs that are valid, what the emitter makes of them, and what the compiler makes of that."""
    from graph_api import FusilliError, Graph

    def valid(data: bytes) -> Graph:
        return Graph.from_json(data).validate()

    return _compiling(_graph_json().seeds, valid, (FusilliError,), damage.document)


def _compiling(
    seeds: Sequence[bytes], graph_of: Callable[[bytes], Any], errors: tuple[type[Exception], ...], changed: Damage
) -> Parser:
    """Graphs, emitted and converted from the torch dialect in a worker, and one in `_WHOLE` compiled.

    What ends the worker, or is stopped, is an error here; another worker then does what the first could do.
    """
    from graph_api import CompileError, FusilliError
    from iree_bridge import Options, Target
    from iree_bridge.compile.compiler import compile_code, emit, lower
    from iree_bridge.support import support

    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    options = Options(
        cache_dir=folder, device="cpu", failures=0, timeout=_COMPILE_SECONDS, memory=_COMPILE_MEMORY, workers=1
    )
    outcomes = Counter[str]()

    def convert(data: bytes, graph: Any) -> object:
        chance = zlib.crc32(data)
        target = Target.parse("gfx942" if chance % 3 == 1 else "cpu")
        support(graph, target).require()
        if chance % _WHOLE == 0:
            return compile_code(graph, target, options, refresh=True)
        return lower(emit(graph, target, options).ir, target, "input", options)

    def read(data: bytes) -> object:
        try:
            graph = graph_of(data)
        except errors:
            outcomes["no graph"] += 1
            raise
        try:
            made = convert(data, graph)
        except FusilliError as error:
            kind = error.kind or "no kind" if isinstance(error, CompileError) else type(error).__name__
            outcomes[kind] += 1
            if re.search("emitting its IR failed: (?!CompileError: )", str(error)):
                raise AssertionError("the emitter failed in place of declining") from error
            if kind in ("crash", "memory", "timeout"):
                _is_alive(lambda: convert(seeds[0], graph_of(seeds[0])))
            raise
        outcomes["compiled" if isinstance(made, tuple) else "converted"] += 1
        return made

    return Parser(seeds, read, errors, changed, 96 << 20, 8 * _COMPILE_SECONDS, outcomes)


def _is_alive(convert: Callable[[], object]) -> None:
    try:
        convert()
    except Exception as error:
        raise AssertionError("what a worker could do before another ended, it cannot do now") from error


PARSERS: Final[dict[str, Callable[[], Parser]]] = {
    "wire": _wire, "json": _json, "graph_json": _graph_json, "config": _config, "artifact": _artifact, "plan": _plan,
    "package": _package, "ep_context": _ep_context, "onnx": _onnx, "mlir": _mlir, "torch": _torch,
    "emitted": _emitted, "frames": _frames,
}  # fmt: skip


# ---- running


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


@contextmanager
def _limited() -> Iterator[None]:
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize:") + _SPACE, resource.RLIM_INFINITY))
    yield


def _waited() -> float:
    """Seconds in which this thread neither ran nor had to wait for a processor, since some moment."""
    running, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.monotonic() - (int(running) + int(queued)) / 1e9


@dataclass
class _Most:
    """What inputs have taken so far."""

    inputs: int = 0
    refused: int = 0
    slowest: float = 0.0
    memory: int = 0

    def told(self) -> dict[str, Any]:
        most = {"slowest": round(self.slowest, 3), "most_mib": round(self.memory / (1 << 20), 1)}
        return {"inputs": self.inputs, "refused": self.refused, **most}


def _read(parser: Parser, data: bytes, most: _Most) -> bool:
    """Whether the parser understood it; within its limits, whether or not."""
    understood = True
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is measured anew
    before, begin, waited = _status("VmRSS:"), time.process_time(), _waited()
    try:
        parser.read(data)
    except parser.errors:
        understood = False
    waited, spent, grown = _waited() - waited, time.process_time() - begin, _status("VmHWM:") - before
    most.inputs, most.refused = most.inputs + 1, most.refused + (not understood)
    most.slowest, most.memory = max(most.slowest, spent), max(most.memory, grown)
    assert spent <= SECONDS, f"{spent:.2f} s"
    assert waited <= parser.wait, f"{waited:.2f} s of waiting"
    assert grown <= parser.room + TIMES * len(data), f"{grown >> 20} MiB for {len(data)} bytes"
    return understood


def run(name: str, seed: int, count: int, seconds: float, current: Path) -> dict[str, Any]:
    """Feed one parser in this process; ``current`` holds the input that is being read."""
    parser = PARSERS[name]()
    for data in parser.seeds:
        try:
            parser.read(data)
        except parser.errors:
            continue
    source, pool = random.Random(seed), list(parser.seeds)
    most, end = _Most(), time.monotonic() + seconds
    with _limited():
        while most.inputs < count and time.monotonic() < end:
            data = parser.damage(source, source.choice(pool))
            if len(data) > _MAX_INPUT:
                continue
            current.write_bytes(data)
            faulthandler.dump_traceback_later(_END, exit=True)
            if _read(parser, data, most):
                if len(pool) < _MAX_POOL:
                    pool.append(data)  # damage upon damage that was not noticed
                else:
                    pool[source.randrange(len(parser.seeds), _MAX_POOL)] = data
    faulthandler.cancel_dump_traceback_later()
    current.unlink(missing_ok=True)
    return most.told() | ({"outcomes": dict(parser.outcomes.most_common())} if parser.outcomes else {})


def child(name: str, seed: int, count: int, seconds: float, folder: Path) -> tuple[str, bool]:
    """Feed one parser in a process of its own; what it says, and whether nothing was found."""
    current = folder / f"{name}-{seed}"
    words = ["--child", name, "--seed", str(seed), "--count", str(count), "--seconds", str(seconds), str(current)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.fuzz", *words], cwd=ROOT, capture_output=True, text=True,
            timeout=seconds + 300, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{name}: HANGS on {current}", False
    if done.returncode:
        return f"{name}: FAILS ({done.returncode}) on {current}\n{done.stderr[-2000:]}", False
    return f"{name}: {done.stdout.strip()}", True


def main() -> int:
    """Entry point."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="parsers; all by default")
    options.add_argument("--seconds", type=float, default=1200.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--count", type=int, default=1 << 62)
    options.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        try:
            print(json.dumps(run(given.child, given.seed, given.count, given.seconds, Path(given.names[0]))))
        except BaseException:
            traceback.print_exc()
            return 1
        return 0
    folder = Path(tempfile.mkdtemp(prefix="fuzz-findings-"))
    all_well = True
    for name in given.names or PARSERS:
        text, well = child(name, given.seed, given.count, given.seconds, folder)
        print(text, flush=True)
        all_well &= well
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main())
