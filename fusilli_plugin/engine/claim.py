"""Which graphs the engine claims beside other providers: all, those that nobody else takes, none, or by rules.

hipDNN asks every engine; one that claims a graph can be chosen for it. On a GPU the default is modest until a self-test
has passed on that device: what other engines in the process may take is left to them. Which those are decides, by their
names; where there is none, nobody else can take a graph, and all are claimed.
"""

from __future__ import annotations

import fnmatch
import json
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fusilli_plugin.engine.importers import Elsewhere, elsewhere
from fusilli_plugin.engine.other_plugins import Company
from fusilli_plugin.errors import BadParamError
from graph_api import DataType, Graph, Node, PointwiseMode, Support
from graph_api.ops.conv import ConvNode
from graph_api.ops.pointwise import PointwiseNode
from iree_bridge import Target

__all__ = ["Claim", "parse"]

_POLICIES: Final = ("off", "fallback", "all")
_MAX_FILE: Final = 1 << 20
_GPU_TYPES: Final = frozenset({DataType.FLOAT, DataType.HALF, DataType.BFLOAT16})
# What the other providers attach to a convolution, a matrix product or a normalisation.
_EPILOGUES: Final = frozenset({
    PointwiseMode.ADD, PointwiseMode.RELU_FWD, PointwiseMode.SIGMOID_FWD, PointwiseMode.TANH_FWD,
    PointwiseMode.GELU_APPROX_TANH_FWD, PointwiseMode.SWISH_FWD, PointwiseMode.ELU_FWD, PointwiseMode.RELU_BWD,
    PointwiseMode.ABS, PointwiseMode.IDENTITY, PointwiseMode.MUL,
})  # fmt: skip
_STANDALONE: Final = frozenset({
    PointwiseMode.RELU_FWD, PointwiseMode.SIGMOID_FWD, PointwiseMode.TANH_FWD, PointwiseMode.ADD, PointwiseMode.SUB,
    PointwiseMode.MUL, PointwiseMode.MAX, PointwiseMode.MIN,
})  # fmt: skip
_MAX_EPILOGUE: Final = 3


class _ClaimRule(NamedTuple):
    """A line of a file of rules: patterns that a node must match, and what happens then."""

    op: str
    dtype: str
    target: str
    claim: bool

    def matches(self, node: Node, target: Target) -> bool:
        dtypes = {tensor.data_type.name for tensor in (*node.inputs.values(), *node.outputs.values())}
        return (
            fnmatch.fnmatchcase(node.op, self.op)
            and any(fnmatch.fnmatchcase(dtype, self.dtype) for dtype in dtypes)
            and (fnmatch.fnmatchcase(str(target), self.target) or fnmatch.fnmatchcase(target.chip, self.target))
        )


class Claim(NamedTuple):
    """A policy.

    Attributes:
        policy: ``off``, ``fallback``, ``all``; "" is ``all`` where the self-test has passed, ``fallback`` elsewhere.
        rules: they come first, node by node; the first that matches decides.
    """

    policy: str = ""
    rules: tuple[_ClaimRule, ...] = ()

    def decide(
        self, graph: Graph, target: Target, has_passed: Callable[[], bool], others: Callable[[], Company]
    ) -> Support:
        """Whether the graph is claimed.

        Args:
            graph: what is asked for.
            target: what it would be compiled for.
            has_passed: tells whether the device passed its self-test.
            others: tells which other engine plugins are loaded.
        """
        undecided = False
        for node in graph.nodes:
            rule = next((rule for rule in self.rules if rule.matches(node, target)), None)
            if rule is not None and not rule.claim:
                return Support.no(f"a rule of FUSILLI_CLAIM leaves {node.op} to others", node=node.name, rule="claim")
            undecided = undecided or rule is None
        return self._by_policy(graph, has_passed, others) if undecided else Support.yes()

    def _by_policy(self, graph: Graph, has_passed: Callable[[], bool], others: Callable[[], Company]) -> Support:
        if self.policy == "off":
            return Support.no("FUSILLI_CLAIM=off", rule="claim")
        if self.policy == "all" or (not self.policy and has_passed()):
            return Support.yes()
        operation = _taken_elsewhere(graph)
        takers = others().takers(operation) if operation else []
        if takers:
            why = "FUSILLI_CLAIM=fallback" if self.policy else "until `fusilli selftest` has passed on this device"
            reason = f"{', '.join(takers)} may accept this graph, and it is left to others: {why}"
            return Support.no(reason, rule="claim")
        return Support.yes()


def parse(text: str) -> Claim:
    """The policy that FUSILLI_CLAIM asks for.

    A file holds JSON: ``{"default": "fallback", "rules": [{"op": "conv_*", "dtype": "HALF", "target": "gfx942",
    "claim": true}]}``; patterns are those of shells and match everything where they are left out.

    Raises:
        BadParamError: it means nothing.
    """
    text = text.strip()
    if text.lower() in ("", *_POLICIES):
        return Claim(text.lower())
    path = Path(text).expanduser()
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadParamError(f"FUSILLI_CLAIM: {path} is no file")  # reading a pipe or device may never end
        if status.st_size > _MAX_FILE:
            raise BadParamError(f"FUSILLI_CLAIM: {path} has more than {_MAX_FILE} bytes")
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        known = ", ".join(_POLICIES)
        raise BadParamError(f"FUSILLI_CLAIM={text!r} is none of {known}, and no file of rules: {error}") from error
    return _from_document(document, str(path))


def _from_document(document: Any, where: str) -> Claim:
    if not isinstance(document, dict) or set(document) - {"default", "rules"}:
        raise BadParamError(f"FUSILLI_CLAIM: {where} must hold an object with 'default' and 'rules'")
    policy = document.get("default", "")
    if policy not in ("", *_POLICIES):
        raise BadParamError(f"FUSILLI_CLAIM: {where}: default {policy!r} is none of {', '.join(_POLICIES)}")
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        raise BadParamError(f"FUSILLI_CLAIM: {where}: 'rules' must be a list")
    return Claim(policy, tuple(_rule(rule, f"{where}: rules[{index}]") for index, rule in enumerate(rules)))


def _rule(rule: Any, where: str) -> _ClaimRule:
    if not isinstance(rule, dict) or set(rule) - {"op", "dtype", "target", "claim"}:
        raise BadParamError(f"FUSILLI_CLAIM: {where} must be an object with op, dtype, target and claim")
    patterns = {name: rule.get(name, "*") for name in ("op", "dtype", "target")}
    for name, pattern in patterns.items():
        if not isinstance(pattern, str):
            raise BadParamError(f"FUSILLI_CLAIM: {where}: {name} must be a pattern, got {pattern!r}")
    if not isinstance(rule.get("claim"), bool):
        raise BadParamError(f"FUSILLI_CLAIM: {where}: claim must be true or false, got {rule.get('claim')!r}")
    return _ClaimRule(claim=rule["claim"], **patterns)


def _taken_elsewhere(graph: Graph) -> str:
    """The operation around which some other provider may take the graph, "" if none may; a doubtful one counts.

    They take one convolution, matrix product or normalisation with up to three pointwise nodes behind it, single
    attention, pooling and simple pointwise nodes; all of it in f32, f16 and bf16 only.
    """
    outside = [tensor for tensor in graph.tensors if not tensor.is_virtual and tensor.value is None]
    if not all(tensor.data_type in _GPU_TYPES or tensor.data_type is DataType.INT32 for tensor in outside):
        return ""
    heads = [node for node in graph.nodes if not isinstance(node, PointwiseNode)]
    tails = [node for node in graph.nodes if isinstance(node, PointwiseNode)]
    if not heads:
        return "pointwise" if len(tails) == 1 and tails[0].attributes.mode in _STANDALONE else ""
    head = heads[0]
    if len(heads) > 1:
        in_pairs = len(heads) == 2 and all(Elsewhere.IN_PAIRS in elsewhere(node) for node in heads)
        return head.op if in_pairs else ""
    if isinstance(head, ConvNode) and head.attributes.is_mirrored:
        return ""
    return head.op if _takes_tails(head, tails) else ""


def _takes_tails(head: Node, tails: Sequence[PointwiseNode]) -> bool:
    if not tails:
        return Elsewhere.ALONE in elsewhere(head)
    if Elsewhere.WITH_EPILOGUE not in elsewhere(head):
        return False
    return len(tails) <= _MAX_EPILOGUE and all(node.attributes.mode in _EPILOGUES for node in tails)
