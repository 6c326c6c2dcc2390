from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from iree_bridge.compile.cache import Cache, Code, Refusal, UntrustedCacheError, key_of

ROOT = Path(__file__).resolve().parents[2]
GRAPH, CODE = "a" * 64, "b" * 64
VMFB = bytes(range(256)) * 8
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def filled(root: Path) -> Cache:
    """A cache with one entry in each level, as a new process would open it."""
    Cache(root).store(CODE, Code(VMFB, {"dispatches": 2}), graph_key=GRAPH)
    return Cache(root)


def code_file(root: Path) -> Path:
    return root / "v1" / "code" / CODE[:2] / f"{CODE}.bin"


def graph_file(root: Path) -> Path:
    return root / "v1" / "graphs" / GRAPH[:2] / f"{GRAPH}.json"


def test_round_trip(filled: Cache) -> None:
    assert filled.code_key(GRAPH) == CODE
    assert filled.code(CODE) == Code(VMFB, {"dispatches": 2})
    assert filled.code_key(CODE) is None
    assert filled.code(GRAPH) is None


def test_an_empty_cache_makes_no_folder(root: Path) -> None:
    cache = Cache(root)
    assert cache.code_key(GRAPH) is None
    assert cache.code(CODE) is None
    assert not root.exists()


def test_folders_and_files_are_private(filled: Cache, root: Path) -> None:
    old = os.umask(0)
    try:
        Cache(root).store("c" * 64, Code(b"x", {}), graph_key="d" * 64)
        with filled.lock("e" * 64, 1):
            pass
    finally:
        os.umask(old)
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_no_temporary_file_is_left(filled: Cache, root: Path) -> None:
    assert not [path for path in root.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "short", "cut", "longer", "bit", "magic", "zeros"],
)
def test_a_damaged_code_entry_is_ignored_removed_and_rebuilt(
    filled: Cache, root: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = code_file(root)
    path.write_bytes(damage(path.read_bytes()))
    assert filled.code(CODE) is None
    assert not path.exists()
    filled.store(CODE, Code(VMFB, {}))
    assert filled.code(CODE) == Code(VMFB, {})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"key": 1, "code": 2}', json.dumps({"key": CODE, "code": CODE}), "\xff"]
)
def test_a_damaged_graph_entry_is_ignored_and_removed(filled: Cache, root: Path, text: str) -> None:
    graph_file(root).write_bytes(text.encode("latin-1"))
    assert filled.code_key(GRAPH) is None
    assert not graph_file(root).exists()


REFUSAL = Refusal("too large\nfor this target", "/failures/1")


def refusal_file(root: Path) -> Path:
    return root / "v1" / "refused" / CODE[:2] / f"{CODE}.json"


def test_a_refusal_is_kept(root: Path) -> None:
    assert Cache(root).refusal(CODE) is None
    Cache(root).refuse(CODE, REFUSAL)
    assert Cache(root).refusal(CODE) == REFUSAL._replace(path=str(refusal_file(root)))
    assert Cache(root).refusal(GRAPH) is None
    assert Cache(root / "own", readonly=[root]).refusal(CODE) == REFUSAL._replace(path=str(refusal_file(root)))
    assert Cache(root).stats()[4:6] == (1, refusal_file(root).stat().st_size)
    assert Cache(root).clear() == 1
    assert Cache(root).refusal(CODE) is None


@pytest.mark.parametrize(
    "entry", [[], {}, {"key": GRAPH, "message": "m", "reproducer": ""}, {"key": CODE, "message": 1, "reproducer": ""}]
)
def test_a_damaged_refusal_is_ignored_and_removed(root: Path, entry: object) -> None:
    Cache(root).refuse(CODE, REFUSAL)
    refusal_file(root).write_text(json.dumps(entry))
    assert Cache(root).refusal(CODE) is None
    assert not refusal_file(root).exists()


def test_an_entry_under_another_key_is_ignored(filled: Cache, root: Path) -> None:
    other = "b" * 63 + "c"
    shutil.copyfile(code_file(root), code_file(root).with_name(f"{other}.bin"))
    os.chmod(code_file(root).with_name(f"{other}.bin"), 0o600)
    assert filled.code(other) is None


@needs_root
@pytest.mark.parametrize("which", [code_file, graph_file])
def test_an_entry_of_another_user_is_not_used(filled: Cache, root: Path, which: Callable[[Path], Path]) -> None:
    os.chown(which(root), 65534, 65534)
    assert None in (filled.code_key(GRAPH), filled.code(CODE))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_can_write_is_not_used(filled: Cache, root: Path, mode: int) -> None:
    code_file(root).chmod(mode)
    assert filled.code(CODE) is None


def test_a_link_or_a_fifo_in_place_of_an_entry_is_not_used(filled: Cache, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.bin"
    shutil.move(code_file(root), target)
    code_file(root).symlink_to(target)
    assert filled.code(CODE) is None
    assert target.exists()
    os.mkfifo(code_file(root), 0o600)
    assert filled.code(CODE) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_of_entries_that_others_can_write_is_not_used(
    root: Path, filled: Cache, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What lies in it is neither read nor replaced; the rest of the cache is used."""
    (root / "v1" / "code" / CODE[:2]).chmod(mode)
    cache = Cache(root)
    cache.check()
    assert cache.code(CODE) is None
    assert not cache.store(CODE, Code(b"new", {}))
    assert "others may write to it" in caplog.text
    (root / "v1" / "code" / CODE[:2]).chmod(0o700)
    assert Cache(root).code(CODE) is not None


@pytest.mark.parametrize("part", ["", "v1", "v1/code"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_refused(root: Path, filled: Cache, part: str, mode: int) -> None:
    (root / part).chmod(mode)
    with pytest.raises(UntrustedCacheError, match="others may write to it"):
        Cache(root).code(CODE)
    with pytest.raises(UntrustedCacheError, match="others may write to it"):
        Cache(root).check()
    (root / part).chmod(0o700)
    assert Cache(root).code(CODE) is not None


@needs_root
@pytest.mark.parametrize("part", ["", "v1", "v1/code"])
def test_a_folder_of_another_user_is_refused(root: Path, filled: Cache, part: str) -> None:
    os.chown(root / part, 65534, 65534)
    with pytest.raises(UntrustedCacheError, match="belongs to user 65534"):
        Cache(root).code(CODE)
    with pytest.raises(UntrustedCacheError, match="FUSILLI_CACHE_DIR"):
        Cache(root).store(CODE, Code(VMFB, {}))


def test_a_linked_folder_below_the_root_is_not_followed(root: Path, filled: Cache, tmp_path: Path) -> None:
    shutil.move(root / "v1" / "code", tmp_path / "code")
    (root / "v1" / "code").symlink_to(tmp_path / "code")
    assert Cache(root).code(CODE) is None


@pytest.mark.parametrize("part", ["v1", "v1/code", f"v1/code/{CODE[:2]}", "v1/locks"])
def test_nothing_is_removed_through_a_link(root: Path, filled: Cache, tmp_path: Path, part: str) -> None:
    other = tmp_path / "other"
    for name in (f"{CODE[:2]}/file", f"code/{CODE[:2]}/file", "file", "x.lock", ".x.tmp"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text("of somebody else")
        os.utime(other / name, (0, 0))
    before = sorted(other.rglob("*"))
    shutil.rmtree(root / part, ignore_errors=True)
    (root / part).symlink_to(other)
    cache = Cache(root, limit=1)
    cache.clear()
    cache.store(CODE, Code(VMFB, {}))
    assert sorted(other.rglob("*")) == before


def test_a_folder_that_others_can_write_is_not_cleared(root: Path, filled: Cache) -> None:
    root.chmod(0o777)
    with pytest.raises(UntrustedCacheError):
        Cache(root).clear()
    assert code_file(root).exists()


def test_a_readonly_cache_is_read_and_never_written(root: Path, filled: Cache, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    cache = Cache(tmp_path / "own", readonly=[root])
    assert cache.code_key(GRAPH) == CODE
    assert cache.code(CODE) == Code(VMFB, {"dispatches": 2})
    code_file(root).write_bytes(b"damaged")
    assert cache.code(CODE) is None
    cache.store(CODE, Code(b"new", {}))
    assert cache.code(CODE) == Code(b"new", {})
    assert set(before) == set(root.rglob("*"))
    assert code_file(root).read_bytes() == b"damaged"


@needs_root
def test_a_readonly_cache_of_another_user_is_refused(root: Path, filled: Cache, tmp_path: Path) -> None:
    os.chown(root, 65534, 65534)
    with pytest.raises(UntrustedCacheError, match="belongs to user 65534"):
        Cache(tmp_path / "own", readonly=[root]).code(CODE)


@needs_root
def test_a_cache_without_write_permission_is_read() -> None:
    # Not in tmp_path: other users cannot reach it. Imports come first: nor, maybe, the sources.
    code = (
        "import os, sys; from pathlib import Path; from iree_bridge.compile.cache import Cache, Code\n"
        "os.setgid(65534); os.setuid(65534); cache = Cache(Path(sys.argv[1]))\n"
        "print(cache.code('b' * 64) is not None, cache.store('c' * 64, Code(b'x', {})))\n"
        "with cache.lock('f' * 64, 5) as held: print(held)"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        Cache(root).store(CODE, Code(VMFB, {}))
        for path in (root, *root.rglob("*")):
            os.chown(path, 65534, 65534)
            path.chmod(0o500 if path.is_dir() else 0o400)
        out = subprocess.run(
            [sys.executable, "-c", code, folder], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
    assert out.stdout.split() == ["True", "False", "False"]


def test_a_cache_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    assert cache.store(CODE, Code(VMFB, {}), graph_key=GRAPH) is False
    assert cache.code(CODE) is None
    with cache.lock(CODE, 1) as held:
        assert held is False


def test_what_was_used_longest_ago_is_removed_first(root: Path) -> None:
    cache = Cache(root, limit=64 * 1000)
    keys = [f"{number:064x}" for number in range(1, 9)]
    now = time.time()
    for age, key in enumerate(reversed(keys)):
        cache.store(key, Code(bytes(10_000), {}))
        path = root / "v1" / "code" / key[:2] / f"{key}.bin"
        if path.exists():
            os.utime(path, (now - 1000 - age, now - 1000 - age))
        assert cache.code(keys[-1]) is not None  # used: never among the oldest
    kept = [key for key in keys if cache.code(key) is not None]
    assert sum(path.stat().st_size for path in root.rglob("*.bin")) <= 64_000
    assert keys[-1] in kept
    assert 2 <= len(kept) <= 6


def test_old_locks_and_temporary_files_are_swept(root: Path, filled: Cache) -> None:
    with filled.lock("c" * 64, 1):
        pass
    stale = code_file(root).with_name(".left.tmp")
    stale.write_bytes(b"")
    old = time.time() - 7 * 24 * 3600
    for path in (stale, root / "v1" / "locks" / f"{'c' * 64}.lock"):
        os.utime(path, (old, old))
    Cache(root).store("d" * 64, Code(b"x", {}))
    assert not stale.exists()
    assert not (root / "v1" / "locks" / f"{'c' * 64}.lock").exists()
    assert filled.code(CODE) is not None


def test_the_lock_holds_among_threads(root: Path) -> None:
    cache = Cache(root)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with cache.lock(CODE, 30) as held:
            assert held
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6


def test_the_lock_holds_among_processes_and_ends_with_its_holder(root: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from iree_bridge.compile.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).lock('b' * 64, 30): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with Cache(root).lock(CODE, 0.05) as held:
            assert not held
        other.kill()
        with Cache(root).lock(CODE, 30) as held:
            assert held


def test_a_forked_child_does_not_keep_the_lock(root: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from iree_bridge.compile.cache import Cache\n"
        "cache = Cache(Path(sys.argv[1]))\n"
        "with cache.lock('b' * 64, 5):\n"
        "    child = os.fork()\n"
        "    if not child: time.sleep(30); os._exit(0)\n"
        "with cache.lock('b' * 64, 1) as held: print(held)\n"
        "os.kill(child, 9); os.waitpid(child, 0)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(root)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.strip() == "True"


def test_stats_entries_and_clear(filled: Cache, root: Path) -> None:
    (root / "failures" / "one").mkdir(parents=True)
    stats = filled.stats()
    assert (stats.graphs, stats.codes, stats.failures, stats.limit) == (1, 1, 1, 4 << 30)
    assert stats.code_bytes == code_file(root).stat().st_size
    ((key, size, _, facts),) = filled.entries()
    assert (key, size, facts) == (CODE, stats.code_bytes, {"dispatches": 2})
    assert filled.clear() == 2
    assert filled.stats().codes == 0
    assert filled.code(CODE) is None


def test_remove(filled: Cache) -> None:
    filled.remove(CODE)
    assert filled.code(CODE) is None


def test_keys_depend_on_names_and_values_and_not_on_order(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "iree_bridge.compile.cache"):
        key = key_of("code", {"ir": "text", "flags": "x"})
    assert key == key_of("code", {"flags": "x", "ir": "text"})
    assert len({key, key_of("code", {"ir": "x", "flags": "text"}), key_of("graph", {"ir": "text", "flags": "x"})}) == 3
    assert "code key part ir" in caplog.text
    assert "code key part flags" in caplog.text
