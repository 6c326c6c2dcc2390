"""Which operations become one graph: the largest convex groups that an engine takes, grown one step at a time.

A group starts at an anchor (convolution, matrix product, norm, ...) with the views in front of it, and grows along its
one escaping value: bias, normalization, residual sum, activation. What is left of elementwise operations is then
grouped among itself. Each step asks the engines about the group as a whole; the answer decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from hipdnn_backend.engine import Support
from hipdnn_backend.offload.passes.graph import FunctionGraph, bits, mask_of
from hipdnn_backend.offload.passes.signature import Signatures
from hipdnn_backend.offload.session import Answer, Session
from hipdnn_backend.offload.to_wire import RESHAPES, RULES, Role, role

__all__ = ["Decision", "decide", "group_operations"]

_MAX_GROUP: Final = 24
_WHOLE: Final = (Role.ANCHOR, Role.REDUCTION)
_SURROUNDED: Final = Support.no("it stands between operations that no engine takes and goes with them", rule="fusion")
_LONE_VIEW: Final = Support.no(
    "it only rearranges elements, or a part of it does, and no engine takes that along with what uses it", rule="view"
)
_PART_OF_WHOLE: Final = Support.no("it is a step of a recurrence, which is one custom operation", rule="recurrence")
_LOOK_AHEAD: Final = 2  # refused steps after which a group may still grow: an engine may want both of two operations
_MAX_STEP: Final = 8  # operations between two moments at which one value escapes


@dataclass
class Decision:
    """What shall be offloaded.

    Attributes:
        groups: the numbers of the operations of each graph as a bit set; disjoint, together without cycles.
        refused: number of an operation that nobody takes → the answer.
    """

    groups: list[int] = field(default_factory=list)
    refused: dict[int, Answer] = field(default_factory=dict)


def group_operations(graph: FunctionGraph, group: int) -> list[Any]:
    """The operations of a group and the constants that they need, in program order."""
    ops = [*graph.helpers(group), *(graph.nodes[number].op for number in bits(group))]
    return sorted(ops, key=lambda op: graph.position[op.results[0]])


def decide(graph: FunctionGraph, session: Session) -> Decision:
    """Groups the operations of a function; changes nothing but the graph's joined sets."""
    return _Grower(graph, session).run()


class _Grower:
    def __init__(self, graph: FunctionGraph, session: Session) -> None:
        self._graph = graph
        self._session = session
        self._asked: dict[int, Answer] = {}
        self._signatures = Signatures(graph)
        self._takes_so: dict[Hashable, bool] = {}
        self._taken = 0
        self._whole = 0
        self._roles = [role(node.name) for node in graph.nodes]
        self._decision = Decision()

    def run(self) -> Decision:
        for whole in self._graph.wholes(self._session.whole) if self._session.options.leftovers else ():
            self._taken |= whole  # by `hipdnn-outline-leftovers`
            self._whole |= whole
            self._graph.join(whole)
        for number, node in enumerate(self._graph.nodes):
            if "softmax" in node.name and self._session.options.fuse:
                self._attention(number)
        for wanted in (Role.ANCHOR, Role.REDUCTION, Role.ELEMENTWISE):
            for number in range(len(self._graph.nodes)):
                if self._roles[number] is wanted and not self._taken >> number & 1:
                    self._seed(number)
        if self._session.options.leftovers:
            while self._surrender():
                pass
        refused = self._decision.refused
        for number in range(len(self._graph.nodes)):
            if self._whole >> number & 1:
                refused[number] = Answer(None, {"": _PART_OF_WHOLE})
            elif self._taken >> number & 1:
                refused.pop(number, None)
            elif self._roles[number] is Role.VIEW:
                refused[number] = Answer(None, {"": _LONE_VIEW})
        return self._decision

    def _surrender(self) -> bool:
        """Gives up the elementwise groups between operations that no engine takes: all become one custom operation."""
        given_up = [group for group in self._decision.groups if self._is_surrounded(group)]
        for group in given_up:
            self._taken &= ~group
            self._decision.refused.update(dict.fromkeys(bits(group), Answer(None, {"": _SURROUNDED})))
            self._decision.groups.remove(group)
        return bool(given_up)

    def _is_surrounded(self, group: int) -> bool:
        graph = self._graph
        if any(self._roles[number] in _WHOLE for number in bits(group)):
            return False
        sides = (graph.outside_producers(group), graph.outside_users(group))
        return all(any(graph.nodes[n].name not in RESHAPES for n in bits(side & ~self._taken)) for side in sides)

    # ---- asking

    def _ask(self, group: int) -> Answer:
        if group not in self._asked:
            graph = self._graph
            if not graph.is_convex(group):
                raise AssertionError("only convex groups are asked about")
            outputs = graph.escaping(group)
            ops = group_operations(graph, group)
            self._asked[group] = self._session.ask(ops, graph.captures(group), outputs)
        return self._asked[group]

    def _is_hopeless(self, number: int) -> bool:
        """True for an operation that has no hipDNN form in any company."""
        return self._graph.nodes[number].name not in RULES

    def _takes(self, group: int) -> bool:
        if group in self._asked:
            return bool(self._asked[group])
        if not self._graph.is_convex(group):
            return False
        signature = self._signatures.of(group)
        if signature not in self._takes_so:
            self._takes_so[signature] = bool(self._ask(group))
        return self._takes_so[signature]

    def _claim(self, group: int) -> None:
        self._decision.groups.append(group)
        self._taken |= group
        self._graph.join(group)

    # ---- growing

    def _seed(self, number: int) -> None:
        alone, fuse = 1 << number, self._session.options.fuse
        starts = [alone]
        if fuse:
            starts.insert(0, self._with_views(alone))
            if self._roles[number] is Role.REDUCTION:
                starts.insert(0, self._with_producers(alone))
        start = next(filter(self._takes, dict.fromkeys(starts)), 0)
        if not start:
            self._decision.refused[number] = self._ask(alone)
            # Operations that no engine takes alone may be taken together, e.g. batch normalization behind a product.
            if not fuse or not self._ask(alone).translation:
                return
            start = alone
        group = self._grow(self._absorb(start))
        if self._takes(group):
            self._claim(group)

    def _absorb(self, group: int) -> int:
        """The group with as much of the views in front of it as an engine takes, chain by chain."""
        if not self._session.options.fuse or group == self._with_views(group):
            return group
        for producer in bits(self._private_producers(group, group)):
            if self._roles[producer] is Role.VIEW:
                chain = self._with_views(group | 1 << producer, 1 << producer)
                group = next(filter(self._takes, dict.fromkeys((chain, group | 1 << producer))), group)
        return group

    def _grow(self, group: int) -> int:
        if not self._session.options.fuse:
            return group
        best, current, refused = group, group, 0
        while refused <= _LOOK_AHEAD and current.bit_count() < _MAX_GROUP:
            step = self._step(current)
            if not step:
                break
            wider = (self._with_producers(current | step, step), self._with_views(current | step, step), current | step)
            taken = next(filter(self._takes, dict.fromkeys(wider)), 0)
            if taken:
                best = current = taken
                refused = 0
            else:
                current, refused = current | step, refused + 1
        return best

    def _step(self, group: int) -> int:
        """The fewest operations behind a group that leave one escaping value again; 0 if there are none."""
        graph, added = self._graph, 0
        for _ in range(_MAX_STEP):
            values = graph.escaping(group | added)
            if added and len(values) == 1:
                return added if graph.is_convex(group | added) else 0
            if any(value in graph.returned for value in values):
                return 0
            users = graph.outside_users(group | added)
            first = (users & -users).bit_length() - 1
            if first < 0 or self._taken >> first & 1 or self._roles[first] in _WHOLE or self._is_hopeless(first):
                return 0
            added |= 1 << first
        return 0

    def _private_producers(self, group: int, of: int) -> int:
        """Unclaimed operations that feed ``of`` and nothing outside the group."""
        graph = self._graph
        feeding = mask_of(p for number in bits(of) for p in graph.nodes[number].producers) & ~group & ~self._taken
        return mask_of(
            p for p in bits(feeding) if not graph.nodes[p].escapes and not mask_of(graph.nodes[p].users) & ~group
        )

    def _with_views(self, group: int, of: int = 0) -> int:
        return self._with(group, of or group, (Role.VIEW,))

    def _with_producers(self, group: int, of: int = 0) -> int:
        return self._with(group, of or group, (Role.VIEW, Role.ELEMENTWISE))

    def _with(self, group: int, of: int, roles: tuple[Role, ...]) -> int:
        """The group and what feeds it alone, of these roles, and what feeds that, and so on."""
        while group.bit_count() < _MAX_GROUP:
            private = self._private_producers(group, of)
            found = mask_of(p for p in bits(private) if self._roles[p] in roles and not self._is_hopeless(p))
            if not found:
                break
            group, of = group | found, found
        return group

    # ---- attention written out

    def _attention(self, softmax: int) -> None:
        """Claims product, scale, mask, softmax and product around a softmax if an engine takes them as one."""
        graph, group = self._graph, 1 << softmax
        above = self._walk(softmax, upward=True)
        below = self._walk(softmax, upward=False)
        if above is None or below is None:
            return
        group |= above | below
        for candidate in dict.fromkeys((self._with_views(group), group)):
            if not candidate & self._taken and len(graph.escaping(candidate)) == 1 and self._takes(candidate):
                self._claim(self._grow(self._absorb(candidate)))
                return

    def _walk(self, start: int, *, upward: bool) -> int | None:
        """From a softmax along single uses to the next matrix product: the operations passed, None without one."""
        graph, passed, number = self._graph, 0, start
        for _ in range(_MAX_STEP):
            following = list(self._neighbours(number, upward))
            if not following:
                return None
            number = following[0]
            if not upward and graph.nodes[number].escapes and self._roles[number] not in _WHOLE:
                return None
            passed |= 1 << number
            if self._roles[number] in _WHOLE:
                is_product = graph.nodes[number].name in _PRODUCTS
                return passed if is_product else None
        return None

    def _neighbours(self, number: int, upward: bool) -> Iterator[int]:
        """The operation before (the producer that only feeds this one) or behind (the only user)."""
        graph = self._graph
        if not upward:
            users = graph.nodes[number].users
            yield from users if len(users) == 1 else ()
            return
        lone = [p for p in graph.nodes[number].producers if graph.nodes[p].users == {number}]
        # a mask may be computed too; the scores come last in program order where both are
        yield from sorted(lone, key=lambda p: (graph.nodes[p].name in _PRODUCTS, p), reverse=True)


_PRODUCTS: Final = frozenset({"torch.aten.matmul", "torch.aten.bmm"})
