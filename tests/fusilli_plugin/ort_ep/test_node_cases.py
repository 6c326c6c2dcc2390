"""ONNX's own node cases through sessions with the provider in strict mode: the answers are those of the CPU provider.

Cases run in processes of their own, so that a crash is an outcome like others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.fusilli_plugin.ort_ep.node_outcomes import ALIKE, ALONE, LEFT, NEITHER, RANDOM
from tests.support.node_cases import load_cases, run_isolated

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu]

_JUDGE = "tests.fusilli_plugin.ort_ep.node_outcomes"
_PARTS = 16
_GOOD = {ALIKE, LEFT, ALONE, RANDOM, NEITHER}

_MASKED = "ONNX gives the provider's answer"  # minus infinity where ONNX Runtime has the least number
_LISTED = {
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal": _MASKED,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal": _MASKED,
}
"""Case → part of what is said about it, which is not that it is like the CPU provider's."""

_SAMPLE = {
    "add": {"test_add_bcast": ALIKE},
    "clip": {"test_clip_example": ALIKE},
    "cast": {"test_cast_FLOAT_to_FLOAT8E4M3FN": ALIKE, "test_cast_INT4_to_FLOAT": LEFT},
    "dequantizelinear": {"test_dequantizelinear_e4m3fn": ALONE},
    "nonzero": {"test_nonzero_example": LEFT},
    "dropout": {"test_training_dropout_default": RANDOM, "test_dropout_default_mask": LEFT},
    "attention": {"test_attention_4d_causal_bf16": ALONE},
    "adam": {"test_adam": NEITHER},
    "affinegrid": {"test_affine_grid_3d_align_corners": LEFT},  # its If gives what has no known type
    "not_": {"test_not_2d": LEFT},  # of the oldest opset
    "sequence_map": {"test_sequence_map_add_2_sequences": ALIKE},  # is replaced, with what is in its body
    "upsample": {"test_upsample_nearest": LEFT},  # what it reads beforehand is an input
}
"""Module of the suite → outcomes of cases that `make test-thorough` runs."""


_FEW = ("add", "dropout", "not_")


@pytest.mark.parametrize(
    "modules", [_FEW, pytest.param(tuple(_SAMPLE), marks=pytest.mark.thorough)], ids=["few", "all"]
)
def test_a_sample_of_cases(modules: Sequence[str]) -> None:
    expected = {name: outcome for module in modules for name, outcome in _SAMPLE[module].items()}
    assert run_isolated(list(expected), modules=modules, judge=_JUDGE) == expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_PARTS))
def test_all_cases(part: int) -> None:
    names = sorted(load_cases())[part::_PARTS]
    found = run_isolated(names, seconds=300, judge=_JUDGE)
    kinds = Counter(outcome.partition(":")[0] for outcome in found.values())
    print(f"of {len(found)} cases: {dict(kinds.most_common())}")
    faults = {name: outcome for name, outcome in found.items() if outcome not in _GOOD}
    unexpected = {name: said for name, said in faults.items() if _LISTED.get(name, said + "!") not in said}
    assert not unexpected
    assert faults.keys() == _LISTED.keys() & set(names), "a listed case is fine now: take it off the list"
