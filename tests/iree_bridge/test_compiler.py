from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graph_api import CompileError, DataType, FusilliError, Graph, PointwiseMode
from iree_bridge.compile import compiler, reproducer
from iree_bridge.compile.cache import Cache, Refusal
from iree_bridge.compile.compiler import CompiledCode, EmittedIr, Recipe
from iree_bridge.compile.inspect import inspect_graph, inspect_mlir
from iree_bridge.compile.options import CompileMode, Options
from iree_bridge.compile.pool import Reply, WorkerError, WorkerPool, pool
from iree_bridge.compile.reproducer import Reproducer
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import FUSED_PADDING, PROCESS_FLAGS, Variant, candidates, choose

ROOT = Path(__file__).resolve().parents[2]
CPU = Target.parse("cpu")
# Half the compile time of the CPU target; most of what follows is not about the code.
FAST = Target.parse("sm_80")
pytestmark = pytest.mark.iree_cpu

# Compiles in a sixth of the time of a module with code in it.
EMPTY = "func.func @main() { return }"
ADD = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
# Broadcast of 3 against 4: found only when the operation is lowered.
MISFIT = """
!a = !torch.vtensor<[16,3],f32>
!b = !torch.vtensor<[16,4],f32>
func.func @main(%a: !a, %b: !b) -> !a {
  %1 = torch.constant.int 1
  %y = torch.aten.add.Tensor %a, %b, %1 : !a, !b, !torch.int -> !a LOCATION
  return %y : !a
}
"""
# torch-mlir makes a null type of an 8-bit integer NCHW convolution, and the compiler a segmentation fault.
CRASH = """
!x = !torch.vtensor<[1,4,8,8],si8>
!w = !torch.vtensor<[4,4,3,3],si8>
func.func @main(%x: !x, %w: !w) -> !x {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %ones = torch.prim.ListConstruct %1, %1 : (!torch.int, !torch.int) -> !torch.list<int>
  %zeros = torch.prim.ListConstruct %0, %0 : (!torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.convolution %x, %w, %none, %ones, %ones, %ones, %false, %zeros, %1
    : !x, !w, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>,
      !torch.int -> !x
  return %y : !x
}
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path / "cache")


def relu(name: str = "relu", size: int = 16, mode: PointwiseMode = PointwiseMode.RELU_FWD) -> Graph:
    graph = Graph(name, io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x = graph.tensor(f"{name}_x", dim=(size,))
    graph.pointwise(mode, x, name=f"{name}_node").set_output(True)
    return graph.validate()


def halves(window: int = 3, stride: int = 1) -> Graph:
    """A convolution of 16-bit floats: of all graphs it has the most forms."""
    graph = Graph("halves", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x, w = graph.tensor("x", dim=(1, 16, 9, 9)), graph.tensor("w", dim=(16, 16, window, window))
    graph.conv_fprop(x, w, padding=(window // 2,) * 2, stride=(stride,) * 2).set_output(True)
    return graph.validate()


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what the compiler was asked to compile, in order."""
    asked: list[str] = []
    original: Callable[..., Any] = compiler._request_compile

    def counted(ir: EmittedIr, job: Any, **more: Any) -> Any:
        asked.append(job.name)
        return original(ir, job, **more)

    monkeypatch.setattr(compiler, "_request_compile", counted)
    return asked


def in_new_process(code: str, cache: Path, **environment: str) -> str:
    prelude = (
        "import sys\nfrom graph_api import DataType, Graph, PointwiseMode\n"
        "from iree_bridge.compile import compiler\nfrom iree_bridge.targets.target import Target\n"
        "graph = Graph('relu', io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)\n"
        "graph.pointwise(PointwiseMode.RELU_FWD, graph.tensor('x', dim=(16,))).set_output(True)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=ROOT,
        env=dict(os.environ) | {"FUSILLI_CACHE_DIR": str(cache)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


def test_a_graph_is_compiled_once(options: Options, compiles: list[str]) -> None:
    first = compiler.compile_code(relu(), FAST, options)
    assert not first.from_cache
    assert first.dispatches == 1
    assert first.seconds > 0
    assert first.flags == (*FAST.global_flags(), *FAST.flags(), *choose(relu(), FAST).flags)
    assert first.target == FAST
    second = compiler.compile_code(relu(), FAST, options)
    assert second == first._replace(from_cache=True)
    assert compiles == ["relu"]


@pytest.mark.a_few("cpu")
@pytest.mark.parametrize("target", ["cpu", "gfx942"])
def test_one_worker_makes_the_ir_and_the_code_of_a_graph(options: Options, target: str) -> None:
    # Flags of the process belong to both targets: if emission asked for a worker without them, a pool of two would end
    # one for each request that threads make.
    own = dataclasses.replace(options, workers=2, idle=61)
    assert Target.parse(target).global_flags()
    workers = pool(own)
    try:
        compiler.compile_code(relu(), Target.parse(target), own)
        assert len(workers.pids()) == 1
    finally:
        workers.shutdown()


def test_names_do_not_matter_and_the_rest_does(options: Options, compiles: list[str]) -> None:
    code = compiler.compile_code(relu(), FAST, options)
    assert compiler.compile_code(relu("other/name é"), FAST, options).key == code.key
    assert compiles == ["relu"]
    keys = {
        code.key,
        compiler.compile_code(relu(size=17), FAST, options).key,
        compiler.compile_code(relu(mode=PointwiseMode.TANH_FWD), FAST, options).key,
        compiler.compile_code(relu(), Target.parse("gfx942"), options).key,
    }
    assert len(keys) == 4


def test_the_host_processor_is_part_of_the_key(options: Options) -> None:
    other = dataclasses.replace(CPU, features="avx2,fma")
    graph = relu()
    keys = {compiler._graph_key(graph, compiler.recipes_for(graph, target, options)) for target in (CPU, other)}
    assert len(keys) == 2


def test_code_does_not_depend_on_names_or_on_when_it_is_compiled(options: Options) -> None:
    graph = relu()
    first = compiler.compile_code(graph, CPU, options, refresh=True)
    second = compiler.compile_code(relu("other"), CPU, options, refresh=True)
    assert not second.from_cache
    assert first.vmfb == second.vmfb


def test_a_second_graph_with_the_same_ir_is_a_hit_of_the_second_level(
    options: Options, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = compiler.compile_code(relu(), FAST, options)
    monkeypatch.setattr(compiler.versions, "emitter_version", lambda: "another emitter, same IR")
    again = compiler.compile_code(relu(), FAST, options)
    assert again.from_cache
    assert again.key == code.key
    assert compiles == ["relu"]
    monkeypatch.setattr(compiler, "_emit", lambda job: pytest.fail("the first level must know it now"))
    assert compiler.compile_code(relu(), FAST, options).key == code.key


def test_what_was_compiled_before_a_new_rule_of_refusal_is_looked_at_again(
    options: Options, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compile_code(relu(), FAST, options)
    for version in ("emitter_version", "examiner_version"):  # the file is part of both
        monkeypatch.setattr(compiler.versions, version, lambda: "a new rule")
    assert not compiler.compile_code(relu(), FAST, options).from_cache
    assert compiles == ["relu", "relu"]


def test_a_hit_starts_no_process_and_imports_no_compiler(options: Options) -> None:
    compiler.compile_code(relu(), FAST, options)
    code = (
        "code = compiler.compile_code(graph, Target.parse('sm_80'))\n"
        "import os; children = open(f'/proc/self/task/{os.getpid()}/children').read().split()\n"
        "print(code.from_cache, children, [name for name in sys.modules if name.startswith('iree.')])"
    )
    assert in_new_process(code, options.cache_dir) == "True [] []"
    assert in_new_process(code, options.cache_dir, FUSILLI_COMPILE="never") == "True [] []"


def test_never_names_the_key_and_starts_no_worker(options: Options, compiles: list[str]) -> None:
    never = dataclasses.replace(options, compile=CompileMode.NEVER, python=Path("/nonexistent"))
    with pytest.raises(
        CompileError, match=r"'relu' is not in the cache for target sm_80 .* graph key [0-9a-f]{64} in /"
    ):
        compiler.compile_code(relu(), FAST, never)
    with pytest.raises(CompileError, match=r"'module' is not in the cache .* code key [0-9a-f]{64}"):
        compiler.compile_mlir(EMPTY, FAST, never)
    with pytest.raises(CompileError, match="FUSILLI_COMPILE=never"):
        compiler.emit(relu(), FAST, never)
    assert compiles == []


def test_threads_that_ask_at_once_share_one_compile(options: Options, compiles: list[str]) -> None:
    results: list[CompiledCode] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        graph = relu(f"thread{number}")
        start.wait()
        results.append(compiler.compile_code(graph, FAST, options))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len({result.vmfb for result in results}) == 1
    assert len(compiles) == 1


def test_threads_share_one_compile_without_a_cache_to_write(tmp_path: Path, compiles: list[str]) -> None:
    (tmp_path / "file").write_text("")
    options = Options(cache_dir=tmp_path / "file" / "cache")
    results: list[bytes] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        results.append(compiler.compile_mlir(EMPTY, FAST, options).vmfb)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(compiles) == 1
    assert not compiler.compile_mlir(EMPTY, FAST, options).from_cache


def test_threads_share_one_failure(options: Options, compiles: list[str]) -> None:
    failures: list[str] = []
    start = threading.Barrier(3)

    def work() -> None:
        start.wait()
        try:
            compiler.compile_mlir("nonsense", FAST, options)
        except CompileError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 3
    assert len(compiles) <= 3


def test_processes_that_share_a_cold_cache_compile_once(options: Options) -> None:
    code = "print(compiler.compile_code(graph, Target.parse('sm_80')).from_cache)"
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(in_new_process(code, options.cache_dir))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["False", "True"]


def test_a_forked_child_compiles(options: Options) -> None:
    code = (
        "import os\ncompiler.compile_code(graph, Target.parse('sm_80'))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    code = compiler.compile_code(graph, Target.parse('sm_80'), refresh=True)\n"
        "    os._exit(3 if code.from_cache else 0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert in_new_process(code, options.cache_dir) == "0"


def test_a_damaged_entry_is_compiled_again(options: Options, compiles: list[str]) -> None:
    code = compiler.compile_code(relu(), FAST, options)
    (entry,) = (options.cache_dir / "v1" / "code").rglob("*.bin")
    entry.write_bytes(entry.read_bytes()[:-3])
    again = compiler.compile_code(relu(), FAST, options)
    assert not again.from_cache
    assert again.vmfb == code.vmfb
    assert len(compiles) == 2
    assert compiler.compile_code(relu(), FAST, options).from_cache


def test_refresh_compiles_again(options: Options, compiles: list[str]) -> None:
    compiler.compile_code(relu(), FAST, options)
    assert not compiler.compile_code(relu(), FAST, options, refresh=True).from_cache
    assert len(compiles) == 2


def test_a_readonly_cache_serves(options: Options, tmp_path: Path, compiles: list[str]) -> None:
    compiler.compile_code(relu(), FAST, options)
    other = Options(cache_dir=tmp_path / "own", cache_readonly=(options.cache_dir,))
    assert compiler.compile_code(relu(), FAST, other).from_cache
    assert len(compiles) == 1
    assert not (tmp_path / "own").exists()


def test_an_error_names_the_node_and_keeps_a_reproducer(options: Options) -> None:
    located = MISFIT.replace("LOCATION", 'loc("bias/add-0")')
    recipe = Recipe(CPU, CPU.flags())
    with pytest.raises(CompileError) as caught:
        compiler.inspect_ir(EmittedIr(MISFIT.replace("LOCATION", ""), located), recipe, options, name="my graph/1")
    message = str(caught.value)
    assert "module 'my graph/1' could not be compiled for cpu" in message
    assert "node 'bias/add-0': " in message
    assert len(message.splitlines()) <= 20
    folder = caught.value.reproducer
    assert folder is not None
    assert folder.parent == options.cache_dir / "failures"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert str(folder) in message
    assert (folder / "module.mlir").read_text() == located
    assert (folder / "flags.txt").read_text().splitlines() == list(CPU.flags())
    assert (folder / "command.txt").read_text().startswith("iree-compile module.mlir -o module.vmfb --iree-hal-")
    assert "bias/add-0" in (folder / "diagnostics.txt").read_text()
    assert json.loads((folder / "versions.json").read_text())["versions"]["iree-base-compiler"].startswith("3.13.")


def test_a_failing_graph_leaves_its_json(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_emit", lambda job: EmittedIr("nonsense", "nonsense"))
    graph = relu()
    with pytest.raises(CompileError, match="graph 'relu' could not be compiled for sm_80: parsing failed") as caught:
        compiler.compile_code(graph, FAST, options)
    assert caught.value.reproducer is not None
    text = (caught.value.reproducer / "graph.json").read_text()
    assert Graph.from_json(text).to_json() == graph.to_json()


def test_a_refusal_is_remembered_and_says_so(options: Options, compiles: list[str]) -> None:
    errors: list[CompileError] = []
    for _ in range(2):
        with pytest.raises(CompileError, match="'bad' could not be compiled for sm_80: parsing failed") as caught:
            compiler.compile_mlir("nonsense", FAST, options, name="bad")
        errors.append(caught.value)
    assert compiles == ["bad"]
    first, second = map(str, errors)
    assert "(remembered" not in first
    assert second.splitlines()[0] == first.splitlines()[0] + " (remembered from an earlier compile)"
    assert set(first.splitlines()[1:]) < set(second.splitlines()[1:])
    assert errors[0].reproducer == errors[1].reproducer is not None
    (entry,) = (options.cache_dir / "v1" / "refused").rglob("*.json")
    assert f"remove {entry}" in second
    assert compiler.cache_for(options).stats().refusals == 1
    # In a process that must not compile, this is told instead of a key that nobody finds.
    with pytest.raises(CompileError, match="parsing failed"):
        compiler.compile_mlir("nonsense", FAST, dataclasses.replace(options, compile=CompileMode.NEVER), name="bad")
    entry.unlink()
    shutil.rmtree(second.partition("reproducer: ")[2].splitlines()[0])
    with pytest.raises(CompileError):
        compiler.compile_mlir("nonsense", FAST, options, name="bad")
    assert compiles == ["bad", "bad"]


def test_a_refusal_is_of_a_text_a_target_and_flags(options: Options, compiles: list[str]) -> None:
    other = dataclasses.replace(options, extra_flags=("--iree-opt-level=O1",))
    for text, target, chosen in [
        ("no", FAST, options),
        ("nay", FAST, options),
        ("no", CPU, options),
        ("no", FAST, other),
    ]:
        with pytest.raises(CompileError) as caught:
            compiler.compile_mlir(text, target, chosen)
        assert "remembered" not in str(caught.value)
    assert len(compiles) == 4
    with pytest.raises(CompileError):
        compiler.compile_mlir("no", FAST, options, refresh=True)
    assert len(compiles) == 5


def test_code_that_is_there_counts_more_than_a_refusal(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a refresh that went well."""
    asked: list[str] = []
    monkeypatch.setattr(Cache, "refusal", lambda _cache, key: asked.append(key))
    made = compiler.compile_mlir(EMPTY, FAST, options)
    (key,) = set(asked)
    monkeypatch.undo()
    compiler.cache_for(options).refuse(key, Refusal("too large", ""))
    assert compiler.compile_mlir(EMPTY, FAST, options) == made._replace(from_cache=True)
    with pytest.raises(CompileError, match="'other' could not be compiled"):
        compiler.compile_mlir("nonsense", FAST, options, name="other")
    with pytest.raises(CompileError, match="'another' could not be compiled"):
        compiler.compile_mlir("nonsense", FAST, options, name="another")


@pytest.mark.thorough
def test_the_refusal_of_a_graph_has_its_own_names(
    options: Options, monkeypatch: pytest.MonkeyPatch, compiles: list[str]
) -> None:
    emitted: list[str] = []

    def emit(job: Any) -> EmittedIr:
        emitted.append(job.name)
        return EmittedIr("nonsense", "nonsense")

    monkeypatch.setattr(compiler, "_emit", emit)
    for name in ("relu", "relu", "other"):
        with pytest.raises(CompileError, match=f"graph '{name}' could not be compiled"):
            compiler.compile_code(relu(name), FAST, options)
    forms = len(compiler.recipes_for(relu("relu"), FAST, options))
    assert emitted == compiles == ["relu"] * forms + ["other"] * forms  # no worker is asked for the second


@pytest.mark.parametrize("kind", ["crash", "memory", "timeout", "linker"])
def test_what_may_go_well_another_time_is_not_remembered(
    options: Options, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    asked: list[object] = []

    def request(_pool: WorkerPool, header: dict[str, Any], *_args: Any, **_more: Any) -> Reply:
        asked.append(header)
        if kind != "linker":
            raise WorkerError(kind, "it ended")
        said = [["error", "failed to link executable: No space left on device"]]
        return Reply(
            {"ok": False, "kind": "RejectedError", "message": "compiling failed", "diagnostics": said}, b"", ""
        )

    monkeypatch.setattr(WorkerPool, "request", request)
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            compiler.compile_mlir(EMPTY, FAST, options)
        assert "remembered" not in str(caught.value)
    assert len(asked) == 2
    assert not list((options.cache_dir / "v1" / "refused").rglob("*.json"))


def test_a_message_is_short_whatever_the_compiler_says(options: Options) -> None:
    text = ADD.replace("arith.addf", "x" * 100_000)
    with pytest.raises(CompileError) as caught:
        compiler.compile_mlir(text, FAST, options)
    assert len(str(caught.value)) < 6000
    assert len(str(caught.value).splitlines()) <= 20


def test_the_number_of_reproducers_is_bounded(options: Options) -> None:
    few = dataclasses.replace(options, failures=2)
    seen: list[Path | None] = []
    for number in range(4):
        with pytest.raises(CompileError) as caught:
            compiler.compile_mlir(f"nonsense{number}", FAST, few)
        seen.append(caught.value.reproducer)
    assert len(set(seen)) == 4
    assert len(list((options.cache_dir / "failures").iterdir())) == 2
    with pytest.raises(CompileError) as caught:
        compiler.compile_mlir("nonsense", FAST, dataclasses.replace(options, failures=0))
    assert caught.value.reproducer is None


def test_an_error_without_a_place_for_a_reproducer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="parsing failed") as caught:
        compiler.compile_mlir("nonsense", FAST, Options(cache_dir=tmp_path / "file" / "cache"))
    assert caught.value.reproducer is None


def test_replay(options: Options) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile_mlir("nonsense", FAST, options, flags=["--iree-opt-level=O2"], name="n")
    assert caught.value.reproducer is not None
    failed = reproducer.load(caught.value.reproducer)
    assert failed.flags == (*FAST.flags(), "--iree-opt-level=O2")
    assert failed.target == FAST
    assert "--iree-opt-level=O2" in failed.command()
    with pytest.raises(CompileError, match="parsing failed"):
        compiler.replay(failed, options)
    assert len(list((options.cache_dir / "failures").iterdir())) == 1
    mended = compiler.replay(dataclasses.replace(failed, ir=EMPTY), options)
    assert mended.vmfb
    assert not mended.from_cache
    assert not (options.cache_dir / "v1").exists() or not list((options.cache_dir / "v1" / "code").rglob("*.bin"))


def _failure() -> Reproducer:
    return Reproducer(name="n", target=FAST, flags=FAST.flags(), global_flags=(), graph_json=None, ir="nonsense",
                      diagnostics="", versions={"emitter": None})  # fmt: skip


def test_only_reproducers_are_pruned(tmp_path: Path) -> None:
    for name in ("a", "20260101-000000-notes"):
        (tmp_path / "failures" / name).mkdir(parents=True)
    saved = [reproducer.save(tmp_path / "failures", _failure(), keep=1) for _ in range(2)]
    names = sorted(path.name for path in (tmp_path / "failures").iterdir())
    assert len(names) == 3
    assert {"a", "20260101-000000-notes"} < set(names)
    assert None not in saved


def test_reproducers_do_not_go_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "failures").symlink_to(tmp_path / "other")
    assert reproducer.save(tmp_path / "failures", _failure(), keep=1) is None
    assert list((tmp_path / "other").iterdir()) == []


def test_a_first_reproducer_makes_the_cache_folder_private(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        reproducer.save(tmp_path / "deep" / "cache" / "failures", _failure(), keep=1)
    finally:
        os.umask(before)
    assert (tmp_path / "deep" / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("module.mlir", None),
        ("flags.txt", None),
        ("versions.json", '{"name": "x", "target": {"backend": "q", "arch": 5}, "versions": {}}'),
        ("versions.json", '{"name": "x", "target": {"backend": "rocm", "arch": "gfx942"}, "versions": []}'),
        ("versions.json", "[" * 100_000),
        ("module.mlir", "\udcff"),
        ("module.mlir", "a pipe"),
    ],
)
def test_a_damaged_reproducer(tmp_path: Path, file: str, text: str | None) -> None:
    folder = reproducer.save(tmp_path / "failures", _failure(), keep=1)
    assert folder is not None
    (folder / file).unlink()
    if text == "a pipe":
        os.mkfifo(folder / file)
    elif text is not None:
        (folder / file).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FusilliError, match="is no reproducer folder, or is damaged"):
        reproducer.load(folder)


@pytest.mark.parametrize("damage", ["missing", "file", "empty", "json", "writable"])
def test_a_reproducer_that_is_none(options: Options, tmp_path: Path, damage: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile_mlir("nonsense", FAST, options)
    folder = caught.value.reproducer
    assert folder is not None
    if damage == "missing":
        folder = tmp_path / "missing"
    elif damage == "file":
        folder = folder / "flags.txt"
    elif damage == "empty":
        folder = tmp_path / "empty"
        folder.mkdir()
    elif damage == "json":
        (folder / "versions.json").write_text("{")
    else:
        folder.chmod(0o777)
    with pytest.raises(FusilliError, match=str(folder)):
        reproducer.load(folder)


@pytest.mark.parametrize("name", ["flags.txt", "module.mlir", "versions.json"])
def test_files_of_a_reproducer_that_others_can_write(tmp_path: Path, name: str) -> None:
    folder = reproducer.save(tmp_path / "failures", _failure(), keep=1)
    assert folder is not None
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (folder / name).chmod(0o620)
    with pytest.raises(FusilliError, match=f"{name} belongs to user .* with mode 620"):
        reproducer.load(folder)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "link"])
def test_a_reproducer_of_pipes_and_links(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = reproducer.save(tmp_path / "failures", _failure(), keep=1)
    assert folder is not None
    (folder / "flags.txt").unlink()
    make(folder / "flags.txt")
    with pytest.raises(FusilliError, match="is no reproducer folder, or is damaged"):
        reproducer.load(folder)


def test_no_flag_hides_in_another(tmp_path: Path) -> None:
    """str.splitlines() splits at more than a terminal shows."""
    flags = ("--a=1\x0b--b=2\x1c--c=3\u2028--d=4", "--e\x1b[2K")
    folder = reproducer.save(tmp_path / "failures", dataclasses.replace(_failure(), flags=flags), keep=1)
    assert folder is not None
    assert reproducer.load(folder).flags == flags


def test_a_crash_is_an_error_and_the_next_compile_works(options: Options) -> None:
    with pytest.raises(CompileError, match=r"the compiler crashed \(killed by SIGSEGV\)") as caught:
        compiler.compile_mlir(CRASH, CPU, options)
    assert caught.value.reproducer is not None
    assert (caught.value.reproducer / "module.mlir").read_text() == CRASH
    assert compiler.compile_mlir(ADD, CPU, options).vmfb


CRASHING = "--iree-llvmcpu-target-cpu-features=-"
REFUSED = "--iree-llvmcpu-target-cpu-features=--"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the compiler crash, or refuse its input, with a flag: what makes it do so changes with each release."""
    original = compiler._ask

    def ask(job: Any, header: Any, payload: bytes, **more: Any) -> Any:
        texts = {CRASHING: CRASH, REFUSED: "func.func @f() { return %nothing }"}
        for flag in set(texts) & set(header.get("flags", ())):
            payload = texts[flag].encode()
            header = header | {"flags": [other for other in header["flags"] if other != flag]}
        return original(job, header, payload, **more)

    monkeypatch.setattr(compiler, "_ask", ask)

    def forms(*flags: str) -> None:
        known = tuple(Variant("plain", (flag,)) for flag in flags)
        monkeypatch.setattr(compiler, "variants", lambda graph, target: known)

    return forms


@pytest.mark.a_few("--iree-llvmcpu-target-cpu-features=--")
@pytest.mark.parametrize("flag", [CRASHING, REFUSED])
def test_the_next_form_is_tried(
    flag: str, options: Options, failing: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failing(flag, "--iree-opt-level=O1")
    code = compiler.compile_code(relu(), CPU, options)
    assert code.flags == (*CPU.global_flags(), *CPU.flags(), "--iree-opt-level=O1")
    assert code.form == "plain"
    assert "form 'plain' of graph 'relu' fails, 'plain' is tried" in caplog.text
    again = compiler.compile_code(relu(), CPU, options)
    assert again.from_cache
    assert (again.vmfb, again.flags, again.form) == (code.vmfb, code.flags, code.form)


def test_what_is_refused_in_all_forms_is_remembered(
    options: Options, failing: Callable[..., None], compiles: list[str]
) -> None:
    failing(REFUSED, REFUSED)
    with pytest.raises(CompileError, match="nor in the other forms that are right for it: 'plain'"):
        compiler.compile_code(relu(), CPU, options)
    assert len(compiles) == 2
    with pytest.raises(CompileError, match="remembered"):
        compiler.compile_code(relu(), CPU, options)
    assert len(compiles) == 2


def test_a_crash_among_the_forms_is_not_remembered(
    options: Options, failing: Callable[..., None], compiles: list[str]
) -> None:
    failing(CRASHING, REFUSED)
    for _ in range(2):
        with pytest.raises(CompileError, match="crashed"):
            compiler.compile_code(relu(), CPU, options)
    assert len(compiles) == 4


@pytest.mark.a_few("endless_kernels")
@pytest.mark.parametrize("fault", ["split_barriers", "endless_kernels", "padding"])
def test_code_that_is_known_to_be_wrong_is_no_result(
    fault: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = compiler._ask

    def ask(job: Any, header: Any, payload: bytes, **more: Any) -> Any:
        reply = original(job, header, payload, **more)
        if header["op"] != "compile" or "--iree-opt-level=O1" in header["flags"]:
            return reply
        if fault == "padding":
            return dataclasses.replace(reply, payload=reply.payload + b"main$async_dispatch_0.kd")
        reply.header[fault] = ["kernel"]
        return reply

    monkeypatch.setattr(compiler, "_ask", ask)
    known = Variant("plain", (FUSED_PADDING,)), Variant("plain", ("--iree-opt-level=O1",))
    monkeypatch.setattr(compiler, "variants", lambda graph, target: known)
    assert "--iree-opt-level=O1" in compiler.compile_code(relu(), Target.parse("gfx942"), options).flags


def test_a_timeout_is_an_error_and_the_next_compile_works(options: Options) -> None:
    with pytest.raises(CompileError, match=r"took more than 0\.05 s and was stopped"):
        compiler.compile_mlir(ADD, FAST, dataclasses.replace(options, timeout=0.05))
    assert compiler.compile_mlir(EMPTY, FAST, options).vmfb


@pytest.mark.parametrize(("whole", "first"), [(600.0, 120.0), (100.0, 60.0), (20.0, 20.0)])
def test_the_last_form_alone_may_take_all_the_time(
    options: Options, monkeypatch: pytest.MonkeyPatch, whole: float, first: float
) -> None:
    allowed: list[float] = []

    def request(_pool: WorkerPool, header: dict[str, Any], *_args: Any, timeout: float, **_more: Any) -> Reply:
        allowed.append(timeout)
        raise WorkerError("timeout", "it took long")

    monkeypatch.setattr(WorkerPool, "request", request)
    monkeypatch.setattr(compiler, "_emit", lambda _job: EmittedIr("text", "text"))
    known = Variant("plain"), Variant("other", ("--iree-opt-level=O1",))
    monkeypatch.setattr(compiler, "variants", lambda graph, target: known)
    with pytest.raises(CompileError, match="nor in the other forms that are right for it: 'other'"):
        compiler.compile_code(relu(), Target.parse("gfx942"), dataclasses.replace(options, timeout=whole))
    assert allowed == [first, whole]


def test_extra_flags_are_appended_and_part_of_the_key(options: Options, compiles: list[str]) -> None:
    plain = compiler.compile_mlir(EMPTY, FAST, options)
    extra = dataclasses.replace(options, extra_flags=("--iree-opt-level=O1",))
    other = compiler.compile_mlir(EMPTY, FAST, extra)
    assert other.flags == (*FAST.global_flags(), *FAST.flags(), "--iree-opt-level=O1")
    assert other.key != plain.key
    assert len(compiles) == 2


def test_the_content_of_a_file_that_a_flag_names_is_part_of_the_key(options: Options, tmp_path: Path) -> None:
    spec = tmp_path / "spec.mlir"
    keys: set[str] = set()
    for text in ("module {}", "module attributes {a} {}"):
        spec.write_text(text)
        recipe = Recipe(FAST, (*FAST.flags(), f"--iree-codegen-tuning-spec-path={spec}"))
        keys.add(compiler._code_key(EmittedIr(EMPTY, EMPTY), recipe))
    assert len(keys) == 2


@pytest.mark.thorough
def test_a_flag_that_is_global_to_the_process_is_found_out(options: Options) -> None:
    flag = "--iree-global-opt-propagate-transposes=false"
    assert compiler.compile_mlir(ADD, CPU, options, flags=[flag]).flags[-1] == flag
    assert flag in compiler.compile_mlir(ADD, CPU, options, global_flags=[flag]).flags


@pytest.mark.a_few("cpu", "cpu:x86-64-v3")
@pytest.mark.parametrize("name", ["cpu", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "sm_80", "gfx942"])
def test_a_compile_asks_one_worker_once(name: str, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that is the process's is not tried on a session first, which would cost a second worker."""
    asked: list[tuple[str, ...]] = []
    request = WorkerPool.request

    def count(self: WorkerPool, header: Any, *args: Any, **named: Any) -> Any:
        asked.append(tuple(named["global_flags"]))
        return request(self, header, *args, **named)

    monkeypatch.setattr(WorkerPool, "request", count)
    monkeypatch.setattr(compiler, "_global_names", set(PROCESS_FLAGS))  # not what earlier tests found out
    target = Target.parse(name)
    forms = {form.flags for graph in (relu(), halves()) for form in candidates(graph, target)}
    for number, more in enumerate(sorted(forms), start=1):
        compiler.compile_mlir(EMPTY, target, options, flags=more)
        assert len(asked) == number, more
        assert asked[-1][: len(target.global_flags())] == target.global_flags()
    assert not target.is_gpu or number > 3


@pytest.mark.thorough
def test_the_last_of_two_equal_flags_of_the_process_counts(options: Options) -> None:
    alignments = [f"--iree-stream-resource-min-offset-alignment={size}" for size in (32, 64)]
    code = compiler.compile_mlir(ADD, CPU, options, flags=alignments[1:], global_flags=alignments[:1])
    assert code.alignment == 64


@pytest.mark.a_few("--iree-nonsense=1-*")
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--iree-nonsense=1", "the compiler has no flag --iree-nonsense=1"),
        ("--iree-opt-level=O17", "iree-opt-level"),
        (
            "--iree-preprocessing-pass-pipeline=builtin.module(nonsense)",
            "'nonsense' does not refer to a registered pass",
        ),
    ],
)
def test_a_faulty_flag_is_an_error(options: Options, flag: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        compiler.compile_mlir(ADD, CPU, options, flags=[flag])
    assert compiler.compile_mlir(ADD, CPU, options).vmfb


def test_text_that_is_no_utf8(options: Options) -> None:
    with pytest.raises(CompileError, match="UTF-8"):
        compiler.compile_mlir("\udc80", FAST, options)


def test_emitted_ir_has_names_only_in_its_locations(options: Options) -> None:
    ir = compiler.emit(relu("name1"), FAST, options)
    assert "name1" not in ir.ir
    assert "name1_node" in ir.located_ir
    assert compiler.emit(relu("other"), FAST, options).ir == ir.ir


@pytest.mark.thorough
def test_key_parts_are_logged(options: Options, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "iree_bridge"):
        compiler.compile_code(relu(), FAST, options)
    for part in ("graph", "emitter", "variants", "flags", "global flags", "files", "target", "iree"):
        assert f"graph key part {part}: " in caplog.text


def test_inspect(options: Options) -> None:
    seen = inspect_graph(relu(), Target.parse("gfx942"), options)
    assert seen.dispatches == 1
    (kernel,) = seen.kernels
    assert kernel.wavefront == 64
    assert 0 < kernel.vgprs < 64
    assert (seen.spills, seen.matrix) == (0, {})
    seen = inspect_mlir(ADD, CPU, options)
    assert (seen.dispatches, seen.kernels) == (1, ())
