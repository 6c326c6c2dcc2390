from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from graph_api import DataType, GraphError

# name: bytes of a value in numpy, distance from 1.0 to the next larger value (0 for exact types), as IEEE 754,
# bfloat16 and OCP MX say
_FACTS = {
    "FLOAT": (4, 2.0**-23),
    "HALF": (2, 2.0**-10),
    "BFLOAT16": (2, 2.0**-7),
    "DOUBLE": (8, 2.0**-52),
    "UINT8": (1, 0),
    "INT8": (1, 0),
    "INT4": (1, 0),
    "INT32": (4, 0),
    "INT64": (8, 0),
    "BOOLEAN": (1, 0),
    "FP8_E4M3": (1, 2.0**-3),
    "FP8_E5M2": (1, 2.0**-2),
    "FP8_E8M0": (1, 1.0),
}


def test_the_facts_cover_every_type() -> None:
    assert [dtype.name for dtype in DataType] == list(_FACTS)


@pytest.mark.parametrize("dtype", DataType, ids=lambda dtype: dtype.name)
def test_sizes_and_precision(dtype: DataType) -> None:
    size, eps = _FACTS[dtype.name]
    assert (dtype.bits, dtype.eps) == (4 if dtype is DataType.INT4 else 8 * size, eps)
    assert [dtype.nbytes(count) for count in (0, 1, 2, 5)] == (
        [0, 1, 1, 3] if dtype is DataType.INT4 else [0, size, 2 * size, 5 * size]
    )
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
    [(DataType.INT4, (-8, 7)), (DataType.INT8, (-128, 127)), (DataType.UINT8, (0, 255)),
     (DataType.INT32, (-(2**31), 2**31 - 1)), (DataType.INT64, (-(2**63), 2**63 - 1))],
)  # fmt: skip
def test_the_range_of_integers(dtype: DataType, expected: tuple[int, int]) -> None:
    assert dtype.range == expected
