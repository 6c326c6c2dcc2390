from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from graph_api import DataType, GraphError

# name: bytes of a value in numpy, distance from 1.0 to the next larger value (0 for exact types), as IEEE 754,
# bfloat16 and OCP MX say
_FACTS: dict[str, tuple[int, float]] = {
    "FLOAT": (4, 2.0**-23),
    "HALF": (2, 2.0**-10),
    "BFLOAT16": (2, 2.0**-7),
    "DOUBLE": (8, 2.0**-52),
    "UINT8": (1, 0),
    "INT8": (1, 0),
    "INT4": (1, 0),
    "UINT4": (1, 0),
    "INT32": (4, 0),
    "INT64": (8, 0),
    "BOOLEAN": (1, 0),
    "FP8_E4M3": (1, 2.0**-3),
    "FP8_E5M2": (1, 2.0**-2),
    "FP8_E4M3_FNUZ": (1, 2.0**-3),
    "FP8_E5M2_FNUZ": (1, 2.0**-2),
    "FP8_E8M0": (1, 1.0),
    "FP6_E2M3": (1, 2.0**-3),
    "FP6_E3M2": (1, 2.0**-2),
    "FP4_E2M1": (1, 2.0**-1),
}
_BITS = {"INT4": 4, "UINT4": 4, "FP4_E2M1": 4, "FP6_E2M3": 6, "FP6_E3M2": 6}


def test_the_facts_cover_every_type() -> None:
    assert [dtype.name for dtype in DataType] == list(_FACTS)


@pytest.mark.parametrize("dtype", DataType, ids=lambda dtype: dtype.name)
def test_sizes_and_precision(dtype: DataType) -> None:
    size, eps = _FACTS[dtype.name]
    bits = _BITS.get(dtype.name, 8 * size)
    assert (dtype.bits, dtype.eps, dtype.is_packed) == (bits, eps, bits < 8)
    assert dtype.is_small_float == (dtype.name[:2] == "FP")
    whole = {4: [0, 1, 1, 3, 4], 6: [0, 1, 2, 4, 6]}.get(bits, [0, size, 2 * size, 5 * size, 8 * size])
    assert [dtype.nbytes(count) for count in (0, 1, 2, 5, 8)] == whole
    assert dtype.numpy.itemsize == size
    assert dtype.is_float == (eps > 0)
    assert dtype.is_integer == ("INT" in dtype.name)
    assert DataType.of(dtype.numpy) is dtype


@pytest.mark.parametrize(
    "dtype", [d for d in DataType if d.is_float and d is not DataType.FP8_E8M0], ids=lambda dtype: dtype.name
)
def test_eps_is_what_numpy_rounds_to(dtype: DataType) -> None:
    above = np.float64(1 + dtype.eps).astype(dtype.numpy)
    below = np.float64(1 + 0.49 * dtype.eps).astype(dtype.numpy)
    assert (float(above), float(below)) == (1 + dtype.eps, 1.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("float32", DataType.FLOAT), (np.int64, DataType.INT64), (bool, DataType.BOOLEAN),
     (ml_dtypes.bfloat16, DataType.BFLOAT16), (np.dtype("u1"), DataType.UINT8)],
)  # fmt: skip
def test_of(given: object, expected: DataType) -> None:
    assert DataType.of(given) is expected


@pytest.mark.parametrize("given", [np.complex64, "float99", None, "", object(), 3.5, np.uint16, ">f4", "S3"])
def test_of_what_has_no_data_type(given: object) -> None:
    with pytest.raises(GraphError, match=r"has no DataType; known are float32, float16, bfloat16"):
        DataType.of(given)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(DataType.INT4, (-8, 7)), (DataType.UINT4, (0, 15)), (DataType.INT8, (-128, 127)), (DataType.UINT8, (0, 255)),
     (DataType.INT32, (-(2**31), 2**31 - 1)), (DataType.INT64, (-(2**63), 2**63 - 1))],
)  # fmt: skip
def test_the_range_of_integers(dtype: DataType, expected: tuple[int, int]) -> None:
    assert dtype.range == expected


_SMALL = [dtype for dtype in DataType if dtype.is_small_float]


def codes(dtype: DataType) -> np.ndarray:
    return np.arange(2**dtype.bits).astype(np.uint8).view(dtype.numpy)


@pytest.mark.parametrize("dtype", _SMALL, ids=lambda dtype: dtype.name)
def test_small_floats_round_to_the_nearest_value_found_by_looking_at_all(dtype: DataType) -> None:
    """Against a search among all values; at a tie the code is even, of FP8_E8M0 the larger."""
    every = codes(dtype)
    order = np.argsort(every.astype(np.float64), kind="stable")
    every = every[order][np.isfinite(every[order].astype(np.float64))]
    values = every.astype(np.float64)
    _, first = np.unique(values, return_index=True)
    every, values = every[first], values[first]
    middles = (values[1:] + values[:-1]) / 2
    probes = np.concatenate([values, middles, middles * (1 + 2.0**-20), middles * (1 - 2.0**-20)])
    if dtype is DataType.FP8_E8M0:
        probes = probes[probes >= 2.0**-126]  # ml_dtypes rounds some of the numbers below, subnormal ones of FLOAT, up
    for probe, got in zip(probes, dtype.rounded(probes), strict=True):
        distance = np.abs(values - probe)
        nearest = every[distance == distance.min()]
        if len(nearest) == 2:
            bits = nearest.view(np.uint8)
            nearest = nearest[1:] if dtype is DataType.FP8_E8M0 else nearest[bits % 2 == 0]
        assert float(got) == float(nearest[0]), probe


@pytest.mark.parametrize("dtype", _SMALL, ids=lambda dtype: dtype.name)
def test_small_floats_saturate_and_keep_nan_where_they_have_one(dtype: DataType) -> None:
    largest = float(dtype.finfo.max)
    got = dtype.rounded(np.array([np.inf, 1e300, np.nan])).astype(np.float64)
    assert (got[0], got[1]) == (largest, largest)
    assert np.isnan(got[2]) if dtype.bits == 8 else got[2] == 0
    below = dtype.rounded(np.array([-np.inf, -1e300])).astype(np.float64)
    assert np.isnan(below).all() if dtype is DataType.FP8_E8M0 else (below == -largest).all()


def test_integers_of_4_bits_round_to_even_and_saturate() -> None:
    given = np.array([2.5, 3.5, -2.5, 100, -100, np.nan, np.inf])
    assert DataType.INT4.rounded(given).astype(int).tolist() == [2, 4, -2, 7, -8, 0, 7]
    assert DataType.UINT4.rounded(given).astype(int).tolist() == [2, 4, 0, 15, 0, 0, 15]
