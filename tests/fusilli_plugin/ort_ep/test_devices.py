from __future__ import annotations

import pytest

from fusilli_plugin.ort_ep.devices import in_hip_order

FOUR = [("0000:03:00.0", "a"), ("0000:43:00.0", "b"), ("0000:83:00.0", "c"), ("0001:03:00.0", "d")]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["0000:03:00.0", "0000:43:00.0", "0000:83:00.0", "0001:03:00.0"], ["a", "b", "c", "d"]),
        (["0000:83:00.0", "0000:03:00.0"], ["c", "a"]),  # HIP_VISIBLE_DEVICES=2,0
        (["0001:03:00.0"], ["d"]),
        (["03:00.0", "0:43:0.0", "0000:C3:00.0"], ["a", "b", None]),
        (["0000:43:00.0", "0000:43:00.0"], ["b", None]),  # partitions of one GPU
        (["", "nonsense"], [None, None]),
        ([], []),
    ],
)
def test_gpus_of_hip_are_found_by_their_place(places: list[str], expected: list[str | None]) -> None:
    assert in_hip_order(places, FOUR) == expected


def test_devices_without_a_place_are_no_gpu_of_hip() -> None:
    assert in_hip_order(["0000:03:00.0", ""], [("", "x"), ("", "y")]) == [None, None]
