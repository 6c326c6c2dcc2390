"""Which of the engines that can run a graph is used: hipDNN's rules.

Policies are asked in turn and the first that applies orders the candidates: the rules of ``HIPDNN_HEUR_CONFIG_PATH``,
then the static order, which ``HIPDNN_HEUR_FALLBACK_ENGINE_ORDER`` replaces. A preferred engine is put in front
afterwards, if it is among what the policy left; if not, the choice falls to the others, and `Selection.notes` says so.

Source: hipDNN's environment page and the behaviour of its two built-in policies in 2026.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from fusilli_ground.environment import environment
from hipdnn_backend import wire
from hipdnn_backend.engine import Engine, EngineId, engine_id, engine_name
from hipdnn_backend.host.registry import parse_engine_id

__all__ = ["CONFIG", "STATIC", "Policies", "Selection", "read_rules", "select", "wish_of", "with_wish"]

CONFIG: Final = "SelectionHeuristic::Config"
STATIC: Final = "SelectionHeuristic::StaticOrdering"
_FIRST: Final = tuple(engine_id(name) for name in ("MIOPEN_ENGINE", "ASM_SDPA_ENGINE", "ROCKE_ENGINE"))
_LAST: Final = engine_id("MIOPEN_ENGINE_DETERMINISTIC")
_MAX_RULES: Final = 16 << 20  # bytes
_ANY: Final = -1


@dataclass(frozen=True)
class _Pattern:
    """What a rule wants of one tensor; -1 matches anything. No strides: any strides."""

    field: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def matches(self, tensor: wire.WireTensor) -> bool:
        return _fits(self.dims, tensor.dims) and (not self.strides or _fits(self.strides, tensor.strides))


def _fits(pattern: Sequence[int], values: Sequence[int]) -> bool:
    return len(pattern) == len(values) and all(
        wanted in (_ANY, value) for wanted, value in zip(pattern, values, strict=True)
    )


@dataclass(frozen=True)
class PreferenceRule:
    """A line of the rules: an operation whose tensors fit prefers an engine.

    Attributes:
        op: e.g. ``conv_fprop``.
        engine: name, or id as text.
        by_name: True if the patterns name their tensors, False if they go by position.
    """

    op: str
    engine: str
    criteria: tuple[tuple[str, int], ...]
    patterns: tuple[_Pattern, ...]
    by_name: bool

    def matches(self, op: str, criteria: tuple[tuple[str, int], ...], tensors: list[tuple[str, Any]]) -> bool:
        if (op, criteria) != (self.op, self.criteria) or len(tensors) != len(self.patterns):
            return False
        if not self.by_name:
            return all(pattern.matches(tensor) for pattern, (_, tensor) in zip(self.patterns, tensors, strict=True))
        left = list(tensors)
        for pattern in self.patterns:
            hit = next((item for item in left if item[0] == pattern.field and pattern.matches(item[1])), None)
            if hit is None:
                return False
            left.remove(hit)
        return True


@dataclass(frozen=True)
class Policies:
    """What the environment says of the choice.

    Attributes:
        order: names of the policies, in the order in which they are asked.
        fallback: ids that may be used, in order; empty for the built-in order of all.
        rules: file of the config policy; read at each choice, so that changes count.
    """

    order: tuple[str, ...] = (CONFIG, STATIC)
    fallback: tuple[EngineId, ...] = ()
    rules: Path | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Policies:
        """From HIPDNN_HEUR_POLICY_ORDER and _FALLBACK_ENGINE_ORDER, lists with commas, and HIPDNN_HEUR_CONFIG_PATH.

        Raises:
            ValueError: a number in a list does not fit into 64 bits.
        """
        environ = environment() if environ is None else environ
        order = tuple(_policy_name(item) for item in _items(environ.get("HIPDNN_HEUR_POLICY_ORDER", "")))
        fallback = _items(environ.get("HIPDNN_HEUR_FALLBACK_ENGINE_ORDER", ""))
        rules = environ.get("HIPDNN_HEUR_CONFIG_PATH", "").strip()
        return cls(order or cls.order, tuple(map(parse_engine_id, fallback)), Path(rules) if rules else None)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _policy_name(text: str) -> str:
    """A policy may be named by the hash of its name, too."""
    numbers = {str(engine_id(name)): name for name in (CONFIG, STATIC)}
    return numbers.get(text, text)


@dataclass(frozen=True)
class Selection:
    """Engines in the order of choice.

    Attributes:
        ids: the first is used.
        policy: what ordered them: name of a policy, "preferred" if the user's wish decided, "" if nothing applied.
        reason: one sentence.
        notes: wishes that were not met and policies that passed, each with its reason.
    """

    ids: tuple[EngineId, ...]
    policy: str
    reason: str
    notes: tuple[str, ...] = ()


def select(
    graph: wire.WireGraph,
    engines: Sequence[Engine],
    *,
    preferred: EngineId | None = None,
    policies: Policies | None = None,
    names: Mapping[int, str] | None = None,
) -> Selection:
    """Order the engines that can run a graph.

    Args:
        graph: what they can run.
        engines: in the order in which they were loaded.
        preferred: the caller's wish; default: the graph's own.
        policies: default: those of the environment.
        names: of engines by id, those that decline included, for the notes.
    """
    preferred = wish_of(graph) if preferred is None else preferred
    if not engines:
        return Selection((), "", "no engine runs the graph")
    notes: list[str] = []
    ids, policy, reason = _by_policies(graph, [engine.id for engine in engines], policies or Policies.from_env(), notes)
    return with_wish(Selection(ids, policy, reason, tuple(notes)), preferred, names or {})


def with_wish(selection: Selection, preferred: EngineId | None, names: Mapping[int, str]) -> Selection:
    """The selection with a preferred engine in front; if that is not in it, a note says so."""
    if preferred is None:
        return selection
    name, ids = names.get(preferred) or engine_name(preferred), selection.ids
    if preferred in ids:
        ids = (preferred, *(id_ for id_ in ids if id_ != preferred))
        return replace(selection, ids=ids, policy="preferred", reason=f"{name} is the preferred engine")
    note = f"the preferred engine {name} is not among the engines that may run the graph"
    return replace(selection, notes=(*selection.notes, note))


def wish_of(graph: wire.WireGraph) -> EngineId | None:
    """The engine that the graph itself prefers, None if it says nothing."""
    return None if graph.preferred_engine_id is None else EngineId(graph.preferred_engine_id)


def _by_policies(
    graph: wire.WireGraph, candidates: Sequence[EngineId], policies: Policies, notes: list[str]
) -> tuple[tuple[EngineId, ...], str, str]:
    for name in policies.order:
        if name == CONFIG:
            found = _by_rules(graph, candidates, policies.rules, notes)
        elif name == STATIC:
            found = _static(candidates, policies.fallback, notes)
        else:
            notes.append(f"policy {name} is not known here")
            continue
        if found:
            return found[0], name, found[1]
    return (), "", "no policy chose an engine"


def _static(
    candidates: Sequence[EngineId], fallback: Sequence[EngineId], notes: list[str]
) -> tuple[tuple[EngineId, ...], str] | None:
    if fallback:
        ids = tuple(dict.fromkeys(id_ for id_ in fallback if id_ in candidates))
        if not ids:
            names = ", ".join(map(engine_name, fallback))
            notes.append(f"HIPDNN_HEUR_FALLBACK_ENGINE_ORDER names none that runs the graph: {names}")
            return None
        return ids, "HIPDNN_HEUR_FALLBACK_ENGINE_ORDER says so"
    ids = tuple(sorted(candidates, key=_rank))  # stable: the others stay in the order of loading
    return ids, "it comes first in hipDNN's static order" if len(ids) > 1 else "no other engine runs the graph"


def _rank(id_: EngineId) -> int:
    if id_ in _FIRST:
        return _FIRST.index(id_)
    return len(_FIRST) + (id_ == _LAST)


def _by_rules(
    graph: wire.WireGraph, candidates: Sequence[EngineId], path: Path | None, notes: list[str]
) -> tuple[tuple[EngineId, ...], str] | None:
    if path is None:
        return None
    # Rules are wishes: where one cannot be met, a note says why and the order is decided as if there were none.
    try:
        rules = read_rules(path)
    except (OSError, ValueError) as error:
        notes.append(f"HIPDNN_HEUR_CONFIG_PATH: {path} cannot be used: {error}")
        return None
    rule = _first_match(rules, graph)
    if rule is None:
        notes.append(f"no rule of {path} fits the graph")
        return None
    wanted = parse_engine_id(rule.engine)
    if wanted not in candidates:
        notes.append(f"a rule of {path} wants {rule.engine}, which does not run the graph")
        return None
    ids = (wanted, *(id_ for id_ in candidates if id_ != wanted))
    return ids, f"a rule of {path} wants {rule.engine} for {rule.op}"


def _first_match(rules: Sequence[PreferenceRule], graph: wire.WireGraph) -> PreferenceRule | None:
    tensors = {tensor.uid: tensor for tensor in graph.tensors}
    tables = [node.attributes for node in graph.nodes if isinstance(node.attributes, wire.Attributes)]
    nodes = [(table.RULE_KEY, table) for table in tables if table.RULE_KEY is not None]
    top = max((key.priority for key, _ in nodes), default=0)
    for key, attributes in nodes:
        if key.priority != top:
            continue
        operands = [(f"{name}_tensor_uid", getattr(attributes, f"{name}_tensor_uid")) for name in key.tensors]
        found = [(field, tensors[uid]) for field, uid in operands if uid is not None]
        criteria = tuple((name, int(getattr(attributes, field))) for name, field in key.criteria)
        for rule in rules:
            if rule.matches(key.op, criteria, found):
                return rule
    return None


def read_rules(path: Path) -> list[PreferenceRule]:
    """The rules in a file: JSON with ``version`` (2: tensors by name) and ``engine_overrides``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is no file")  # reading a pipe or device may never end
    with path.open("rb") as file:
        data = file.read(_MAX_RULES)
    if len(data) == _MAX_RULES:
        raise ValueError(f"{_MAX_RULES >> 20} MiB or more are no rules")
    try:
        document = json.loads(data)
        by_name = _integer(document.get("version", 1), "version") >= 2
        entries = document["engine_overrides"]
        return [_rule(entry, by_name) for entry in _list(entries, "engine_overrides")]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the rules lack {error}" if isinstance(error, KeyError) else str(error)) from None
    except RecursionError:
        raise ValueError("the rules are nested too deeply") from None


def _rule(entry: Mapping[str, Any], by_name: bool) -> PreferenceRule:
    patterns = tuple(
        _Pattern(_text(tensor.get("tensor_id", "")), _integers(tensor["dim"]), _integers(tensor.get("stride", [])))
        for tensor in _list(entry["tensors"], "tensors")
    )
    criteria = {name: _integer(value, name) for name, value in entry.get("criteria", {}).items()}
    engine = _text(entry["engine_name"])
    parse_engine_id(engine)
    return PreferenceRule(_text(entry["op"]), engine, tuple(sorted(criteria.items())), patterns, by_name)


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list: {value!r:.60}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is no string")
    return value


def _integer(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is no integer: {value!r:.60}")
    return value


def _integers(value: object) -> tuple[int, ...]:
    return tuple(_integer(item, "an entry of dim or stride") for item in _list(value, "dim or stride"))
