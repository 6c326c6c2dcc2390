"""DLPack objects described without a consumer, against what numpy and torch say of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusilli_ground import dlpack


def none(_kind: int) -> None:
    return None


def test_a_strided_array_of_numpy() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    part = whole[::2, 1:4]
    found = dlpack.examine(part, none)
    assert (found.dims, found.strides, found.dtype) == ((2, 3), (12, 1), np.dtype(np.float32))
    assert (found.address, found.kind in dlpack.HOST_KINDS, found.writable) == (part.ctypes.data, True, True)


def test_a_read_only_array() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    assert not dlpack.examine(array, none).writable


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.int16])
def test_types_of_torch(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 3).to(dtype)
    found = dlpack.examine(tensor, none)
    assert str(dtype) == f"torch.{found.dtype.name}"
    assert found.address == tensor.data_ptr()


def test_a_tensor_with_a_gradient_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match="Tensor refuses to share its memory .*pass .detach()"):
        dlpack.examine(torch.zeros(2, requires_grad=True), none)


def test_what_speaks_dlpack() -> None:
    assert dlpack.is_shareable(np.zeros(1))
    assert not dlpack.is_shareable([1.0])
