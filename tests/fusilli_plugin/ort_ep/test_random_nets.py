"""Random nets with open dims through the provider, two shapes each; `random_nets` is the generator and runs more."""

from __future__ import annotations

import pytest

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import session
from tests.fusilli_plugin.ort_ep.random_nets import net, picture_net, run

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]


@pytest.mark.a_few("3", "5", "7", "9", "11")
@pytest.mark.parametrize("seed", range(12))
def test_every_node_is_claimed_and_in_one_group(seed: int) -> None:
    report = fusilli_plugin.ep_report(session(net(seed).proto.SerializeToString(), strict="1"))
    # A recurrence that begins or ends a net is left: it is one custom operation, and stands between nothing.
    left = [node for node in report.nodes if node.op_type in ("RNN", "LSTM", "GRU") and node.reason]
    assert (report.claimed, report.groups, report.problems) == (len(report.nodes) - len(left), 1, ()), report


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [101, 103, 106])
def test_results_are_right(seed: int) -> None:
    """A detector, attention, a recurrence."""
    assert not run(seed, on_new_shape="wait")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strict", ["0", "1"])
@pytest.mark.parametrize("first", range(200, 240, 8))
def test_many_results_are_right(first: int, strict: str) -> None:
    for seed in range(first, first + 8):
        # a recurrence of more than 32 steps in both directions has no code: only kernels
        if strict == "1" and seed % 4 == 2:
            continue
        assert not run(seed, on_new_shape="wait", strict=strict)


def _guesses_fit(seed: int) -> None:
    """Where two guesses contradict each other, a node is left, or stands in another group."""
    report = fusilli_plugin.ep_report(session(picture_net(seed)))
    assert (report.claimed, report.groups, report.problems) == (len(report.nodes), 1, ()), f"net {seed}: {report}"


@pytest.mark.a_few("1", "4", "5", "12")
@pytest.mark.parametrize("seed", [*range(6), 8, 12, 18, 23, 32])
def test_guessed_heights_and_widths_fit_each_other(seed: int) -> None:
    _guesses_fit(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(100, 300, 50))
def test_many_guessed_heights_and_widths_fit_each_other(first: int) -> None:
    for seed in range(first, first + 50):
        _guesses_fit(seed)
