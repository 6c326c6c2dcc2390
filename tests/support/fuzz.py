"""Fuzzes what reads foreign bytes: ``python -m tests.support.fuzz [NAME ...] [--seconds S] [--seed N] [--count N]``.

Each parser runs in a process with a limit on its memory. An input may end in the parser's own error; it is a finding if
it ends the process or in any other exception, takes more than `SECONDS` of processor time, or more memory than
`ROOM` bytes and `TIMES` bytes for each of its own. Findings are kept as files.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 1.0
ROOM: Final = 96 << 20
TIMES: Final = 64
_SPACE: Final = 3 << 30
"""Bytes of address space that a parser may add to those of its imports."""
_NUMBERS: Final = (-(2**63), -1, 0, 1, 2, 7, 64, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**64, 1e308, 0.5)
_TEXTS: Final = ("", "\0", "../x", "a" * 300, "\x1b[2K\n", "/dev/zero", "float32", "cpu", "\ud800")


@dataclass(frozen=True)
class Parser:
    """Something that reads bytes.

    Attributes:
        seeds: what it understands.
        read: raises one of `errors` for what it does not.
        errors: its own exceptions.
    """

    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


# ---- parsers


def _graphs() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "tests" / "data" / "hipdnn_graphs").glob("*.bin"))]


def _wire() -> Parser:
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import decode_graph

    return Parser(_graphs(), decode_graph, (WireError,))


def _json() -> Parser:
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import decode_graph
    from hipdnn_backend.wire.json import graph_from_json, graph_to_json

    return Parser([graph_to_json(decode_graph(data)).encode() for data in _graphs()], graph_from_json, (WireError,))


def _graph_json() -> Parser:
    from fusilli_plugin.importers import import_graph
    from graph_api import FusilliError, Graph
    from hipdnn_backend.wire import decode_graph

    seeds = [import_graph(decode_graph(data)).to_json().encode() for data in _graphs()]
    return Parser(seeds, lambda data: Graph.from_json(data), (FusilliError,))


def _config() -> Parser:
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import EngineConfig, KnobSetting, decode_engine_config, encode_engine_config

    knobs = tuple(KnobSetting(knob_id=f"knob{n}", value=value) for n, value in enumerate((1, 0.5, "text")))
    seeds = [
        encode_engine_config(EngineConfig(engine_id=5)),
        encode_engine_config(EngineConfig(engine_id=5, knobs=knobs)),
    ]
    return Parser(seeds, decode_engine_config, (WireError,))


def _compiled() -> bytes:
    from fusilli_plugin.importers import import_graph
    from hipdnn_backend.wire import decode_graph
    from iree_bridge import Target
    from iree_bridge.artifact import compile_artifact

    graph = import_graph(decode_graph(_graphs()[0]))
    return compile_artifact(graph, [Target.parse("cpu")]).to_bytes()


def _artifact() -> Parser:
    from iree_bridge.artifact import Artifact, ArtifactError

    return Parser([_compiled()], Artifact.from_bytes, (ArtifactError,))


def _plan() -> Parser:
    from fusilli_plugin.envelope import seal, unseal
    from graph_api import FusilliError
    from iree_bridge.artifact import Artifact

    artifact = _compiled()

    def read(data: bytes) -> object:
        """As it is, and as what a header with the right digest holds."""
        Artifact.from_bytes(unseal(seal(data[52:])))
        return unseal(data)

    return Parser([seal(artifact)], read, (FusilliError,))


def _saved() -> bytes:
    from hipdnn_backend.offload.package import save_package
    from tests.hipdnn_backend.offload.test_package import variant

    with tempfile.TemporaryDirectory() as folder:
        save_package(Path(folder, "m"), "m", [variant("cpu"), variant("gfx942")])
        return Path(folder, "m").read_bytes()


def _package() -> Parser:
    from hipdnn_backend.offload.package import Package, PackageError

    path = Path(tempfile.mkdtemp(prefix="fuzz-"), "model")

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return Package.open(path).variant("cpu")

    return Parser([_saved()], read, (PackageError,))


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
                restore(attributes, str(folder / "model.onnx"), "cpu", [FakeEngine()])
            except (FusilliError, OffloadError):
                continue
        return None

    return Parser([_saved()], read, ())


def _onnx() -> Parser:
    from hipdnn_backend.offload.errors import ModelError
    from hipdnn_backend.offload.frontend import prepare
    from tests.hipdnn_backend.offload.frontend.test_growth import MODELS
    from tests.hipdnn_backend.offload.frontend.test_nesting import functions
    from tests.support.onnx_models import bert_layer, small_cnn

    models = [small_cnn(size=8), bert_layer(hidden=8, heads=2, sequence=2), functions(5, 2)]
    names = ("doubled input", "flattened by propagated dims", "doubled in a branch", "many dims")
    return Parser([m.SerializeToString() for m in models] + [MODELS[n] for n in names], prepare, (ModelError,))


def _mlir() -> Parser:
    from hipdnn_backend.offload._mlir import new_context
    from hipdnn_backend.offload.errors import ModelError
    from hipdnn_backend.offload.frontend.mlir_text import load_text
    from tests.support.passes import TWO_CONVS

    path, context = Path(tempfile.mkdtemp(prefix="fuzz-"), "model.mlir"), new_context()
    relu = "func.func @f(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {\n" + (
        '  %0 = torch.aten.relu %a : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32> loc("r"("x"))\n'
        "  return %0 : !torch.vtensor<[2],f32>\n}\n"
    )

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return load_text(path, context)

    return Parser([relu.encode(), TWO_CONVS.encode()], read, (ModelError,))


def _frames() -> Parser:
    from iree_bridge import _frames

    ours, theirs = socket.socketpair()
    with ours, theirs:
        _frames.send(ours, {"op": "compile", "flags": ["a"], "n": 1}, b"payload")
        seed = theirs.recv(1 << 16)

    def read(data: bytes) -> object:
        left, right = socket.socketpair()
        with left, right:
            left.sendall(data[:100_000])
            left.close()
            return _frames.receive(right, deadline=time.monotonic() + 5)

    return Parser([seed], read, (_frames.PeerGoneError, TimeoutError))


PARSERS: Final[dict[str, Callable[[], Parser]]] = {
    "wire": _wire, "json": _json, "graph_json": _graph_json, "config": _config, "artifact": _artifact, "plan": _plan,
    "package": _package, "ep_context": _ep_context, "onnx": _onnx, "mlir": _mlir, "frames": _frames,
}  # fmt: skip


# ---- damage


def mutated(source: random.Random, data: bytes) -> bytes:
    """Other bytes, another value in JSON, or other bytes or values in a member of an archive."""
    if data.startswith(b"PK") and source.random() < 0.7:
        return _archive(source, data)
    if data[:1] == b"{" and source.random() < 0.5:
        return _document(source, data)
    return changed_bytes(source, data)


def changed_bytes(source: random.Random, data: bytes) -> bytes:
    """A few bytes changed, copied, cut out or cut off."""
    out = bytearray(data)
    for _ in range(source.randint(1, 5)):
        if not out:
            break
        at, size = source.randrange(len(out)), source.choice((1, 1, 2, 4, 8, 32))
        match source.randrange(6):
            case 0:
                out[at] ^= 1 << source.randrange(8)
            case 1:
                out[at : at + size] = source.randbytes(size)
            case 2:
                out[at : at + size] = source.choice((b"\0", b"\xff", b"\x7f")) * size
            case 3:
                other = source.randrange(len(out))
                out[at : at + size] = out[other : other + size]
            case 4:
                other = source.randrange(len(out))
                out[at:at] = out[other : other + size * 8] * source.choice((1, 1, 1, 50))
            case _:
                del out[at : (None if source.random() < 0.2 else at + size)]
    return bytes(out)


def _document(source: random.Random, data: bytes) -> bytes:
    try:
        document = json.loads(data)
    except ValueError:
        return changed_bytes(source, data)
    for _ in range(source.randint(1, 3)):
        places = list(_places(document))
        holder, key = source.choice(places) if places else ([document], 0)
        match source.randrange(6):
            case 0 | 1:
                holder[key] = source.choice(_NUMBERS)
            case 2:
                holder[key] = source.choice(_TEXTS)
            case 3:
                holder[key] = source.choice(([], {}, None, True, [[]] * 9, {"": {}}))
            case 4:
                other, name = source.choice(places)
                holder[key] = other[name]
            case _:
                del holder[key]
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):  # a value that holds itself
        return changed_bytes(source, data)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > 40:
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key], depth + 1)


def _archive(source: random.Random, data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError):
        return changed_bytes(source, data)
    at = 0 if source.random() < 0.7 else source.randrange(len(members))
    name, old = members[at]
    members[at] = (name if source.random() < 0.9 else source.choice(("../x", "a", name * 2)), mutated(source, old))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, content in members:
            archive.writestr(zipfile.ZipInfo(member.replace("\0", "")), content)
    return out.getvalue()


# ---- running


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


@contextmanager
def _limited() -> Iterator[None]:
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize:") + _SPACE, resource.RLIM_INFINITY))
    yield


def run(name: str, seed: int, count: int, seconds: float, current: Path) -> dict[str, Any]:
    """Feed one parser in this process; ``current`` holds the input that is being read."""
    parser = PARSERS[name]()
    for data in parser.seeds:
        try:
            parser.read(data)
        except parser.errors:
            continue
    source, pool = random.Random(seed), list(parser.seeds)
    slowest, most, done, refused, end = 0.0, 0, 0, 0, time.monotonic() + seconds
    with _limited():
        while done < count and time.monotonic() < end:
            data = mutated(source, source.choice(pool))
            current.write_bytes(data)
            Path("/proc/self/clear_refs").write_text("5")  # the most memory is measured anew
            before, begin = _status("VmRSS:"), time.process_time()
            try:
                parser.read(data)
                if len(pool) < 200 and len(data) < 1 << 20:
                    pool.append(data)  # damage upon damage that was not noticed
            except parser.errors:
                refused += 1
            spent, grown = time.process_time() - begin, _status("VmHWM:") - before
            slowest, most, done = max(slowest, spent), max(most, grown), done + 1
            assert spent <= SECONDS, f"{spent:.2f} s"
            assert grown <= ROOM + TIMES * len(data), f"{grown >> 20} MiB for {len(data)} bytes"
    current.unlink(missing_ok=True)
    return {"inputs": done, "refused": refused, "slowest": round(slowest, 3), "most_mib": most >> 20}


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
