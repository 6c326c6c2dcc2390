"""TensorAttr: what a graph knows of a tensor, and the setters that a user chains on it."""

# Users may pass anything.
# pyright: reportUnnecessaryIsInstance=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from reprlib import repr as _shown  # of values from outside, which may be long
from typing import Any, TypeVar

from fusilli_ground.late_numpy import np
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import Dims, PhysicalLayout, extent, physical

__all__ = ["Scalar", "TensorAttr", "checked_name", "int_tuple"]

Scalar = float | int | bool
T = TypeVar("T")

_INT64_MAX = 2**63 - 1
_WIDEST = 2**128
_ALIGNMENT = 64
_MOST_STRIDE = 2**56
_MAX_RANK = 32


def int_tuple(values: object, what: str) -> Dims:
    """``values`` as a tuple of Python ints; numpy integers are welcome, floats and strings are not."""
    if isinstance(values, str | bytes) or not (isinstance(values, Sequence) or isinstance(values, np.ndarray)):  # noqa: SIM101 - numpy only if it is needed
        raise GraphError(f"{what} must be a sequence of integers, got {_shown(values)}")
    try:
        numbers = tuple(operator.index(value) for value in values)  # type: ignore[arg-type]
    except TypeError as error:
        raise GraphError(f"{what} must hold integers, got {_shown(values)}") from error
    if any(abs(number) > _WIDEST for number in numbers):  # Python refuses to print the largest ones
        raise GraphError(f"{what} must be far smaller; one has {max(map(int.bit_length, numbers))} bits")
    return numbers


def flag(value: object, what: str) -> bool:
    """``value`` as a bool; None, 0 and 1 are welcome."""
    if value is None or isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise GraphError(f"{what} must be True or False, got {_shown(value)}")


def checked_name(name: object, what: str, *, may_be_empty: bool = False) -> str:
    """``name`` if it is text that can be written as UTF-8; files and the compiler need that."""
    if not isinstance(name, str) or not (name or may_be_empty):
        raise GraphError(f"{what} must be a {'' if may_be_empty else 'non-empty '}string, got {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise GraphError(f"{what} must be text, got {name!r}, which holds half of a surrogate pair") from None
    return name


def _aligned(nbytes: int) -> np.ndarray[Any, Any]:
    """New zeroed bytes that start where devices use them without a copy."""
    raw = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]


def _bits(codes: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The lowest ``count`` bits of each byte, the lowest first, all in a row."""
    return np.unpackbits(codes.reshape(-1, 1), axis=1, count=count, bitorder="little").reshape(-1)


class TensorAttr:
    """A tensor of one graph: name, uid, dims, strides, data type, virtual flag, optional scalar value.

    Made by :meth:`Graph.tensor`, :meth:`Graph.scalar` and by the operations of a graph. What the user leaves open is
    inferred by :meth:`Graph.validate`, which also freezes the tensor.

    Attributes:
        name: unique in its graph; any non-empty text.
        uid: unique in its graph; given, or assigned by ``validate``.
        dims: logical dims (N, C, spatial...).
        strides: in elements, one per dim.
        data_type: element type.
        is_virtual: True if the tensor is an intermediate value without a buffer.
        value: compile-time scalar, or None.
    """

    __slots__ = (
        "_frozen",
        "_given_dims",
        "_given_dtype",
        "_given_name",
        "_given_strides",
        "_given_uid",
        "_resolved_dims",
        "_resolved_dtype",
        "_resolved_name",
        "_resolved_strides",
        "_resolved_uid",
        "is_pass_by_value",
        "is_virtual",
        "physical",
        "value",
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        uid: int | None = None,
        dims: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        data_type: DataType | None = None,
        is_virtual: bool = False,
        value: Scalar | None = None,
        is_pass_by_value: bool = False,
    ) -> None:
        object.__setattr__(self, "_frozen", False)
        self.is_virtual = is_virtual
        self.is_pass_by_value = is_pass_by_value
        self.value: Scalar | None = None
        self.physical: PhysicalLayout
        self._given_name: str | None = None
        self._given_uid: int | None = None
        self._given_dims: Dims | None = None
        self._given_strides: Dims | None = None
        self._given_dtype: DataType | None = None
        self.forget()
        if name is not None:
            self.set_name(name)
        if uid is not None:
            self.set_uid(uid)
        if dims is not None:
            self.set_dim(dims)
        if strides is not None:
            self.set_stride(strides)
        if data_type is not None:
            self.set_data_type(data_type)
        if value is not None:
            self.set_value(value)

    def __setattr__(self, attribute: str, value: object) -> None:
        if self._frozen:
            raise GraphError(f"tensor '{self.name}' belongs to a validated graph and cannot be changed any more")
        object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        dims = "?" if self._resolved_dims is None else "x".join(map(str, self._resolved_dims))
        dtype = "?" if self._resolved_dtype is None else self._resolved_dtype.name
        return f"<TensorAttr '{self.name}' {dims} {dtype}{' virtual' if self.is_virtual else ''}>"

    @property
    def name(self) -> str:
        return self._resolved_name or ""

    @property
    def uid(self) -> int:
        return self._known(self._resolved_uid, "uid")

    @property
    def dims(self) -> Dims:
        return self._known(self._resolved_dims, "dims")

    @property
    def strides(self) -> Dims:
        return self._known(self._resolved_strides, "strides")

    @property
    def data_type(self) -> DataType:
        return self._known(self._resolved_dtype, "data type")

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.dims)

    @property
    def is_repeated(self) -> bool:
        """Whether elements stand for several: along a dim larger than 1 the stride is 0, which inputs may have.

        Raises:
            GraphError: there are no dims or strides yet.
        """
        return any(stride == 0 and dim > 1 for stride, dim in zip(self.strides, self.dims, strict=True))

    @property
    def volume(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element in memory, gaps included."""
        return self.data_type.nbytes(extent(self.dims, self.strides))

    def set_name(self, name: str) -> TensorAttr:
        """Names the tensor; any non-empty text, unique in the graph."""
        self._given_name = self._resolved_name = checked_name(name, "a tensor name")
        return self

    def set_uid(self, uid: int) -> TensorAttr:
        """Sets the unique id, a non-negative 64-bit integer."""
        (number,) = int_tuple([uid], f"uid of tensor '{self.name}'")
        if not 0 <= number <= _INT64_MAX:
            raise GraphError(f"tensor '{self.name}': uid {number} is outside 0 .. 2^63-1")
        self._given_uid = self._resolved_uid = number
        return self

    def set_dim(self, dims: Sequence[int]) -> TensorAttr:
        """Sets the logical dims, each at least 1, at most 32 of them."""
        new = int_tuple(dims, f"dims of tensor '{self.name}'")
        if len(new) > _MAX_RANK:
            raise GraphError(f"tensor '{self.name}': {len(new)} dims, there may be {_MAX_RANK} at most")
        if any(dim < 1 for dim in new) or math.prod(new) > _INT64_MAX:
            raise GraphError(
                f"tensor '{self.name}': dims {new} must be at least 1 each and hold fewer than 2^63 elements"
            )
        self._given_dims = self._resolved_dims = new
        return self

    def set_stride(self, strides: Sequence[int]) -> TensorAttr:
        """Sets the strides in elements, one per dim; 0 repeats an input along that dim."""
        new = int_tuple(strides, f"strides of tensor '{self.name}'")
        if any(not 0 <= stride <= _INT64_MAX for stride in new):
            raise GraphError(f"tensor '{self.name}': strides {new} must be 0 or positive")
        self._given_strides = self._resolved_strides = new
        return self

    def set_data_type(self, data_type: DataType) -> TensorAttr:
        """Sets the element type."""
        if not isinstance(data_type, DataType):
            raise GraphError(f"tensor '{self.name}': data type must be a DataType, got {data_type!r}")
        self._given_dtype = self._resolved_dtype = data_type
        return self

    def set_output(self, output: bool = True) -> TensorAttr:
        """Makes the tensor a result of the graph that is written to a buffer."""
        if not isinstance(output, bool | np.bool_):
            raise GraphError(f"tensor '{self.name}': output must be True or False, got {_shown(output)}")
        self.is_virtual = not output
        return self

    def set_value(self, value: Scalar) -> TensorAttr:
        """Makes the tensor a compile-time constant of one element."""
        if type(value) not in (bool, int, float) and isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, bool | int | float):
            raise GraphError(f"tensor '{self.name}': a scalar value must be a number or bool, got {_shown(value)}")
        self.value = value
        return self

    def empty(self) -> np.ndarray[Any, Any]:
        """A new array of the tensor's dims, strides and dtype, aligned so that devices use it without a copy.

        One of a packed type has a byte for each element: it holds values, which ``pack`` makes memory of.
        """
        return self._strided(self._whole_elements())

    def memory(self) -> np.ndarray[Any, Any]:
        """A new array that a run writes as a result: as ``empty``, or of a packed type its bytes, for ``unpack``."""
        return _aligned(self.nbytes) if self.data_type.is_packed else self.empty()

    def pack(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The memory of the tensor as its bytes, uint8 ``[nbytes]``, aligned so that devices use it without a copy.

        Of a type of ``b`` bits, the element at offset ``i`` (strides times indices) has the bits ``b * i`` to
        ``b * i + b - 1``, lowest first: 4-bit elements lie in the lower and the upper half of a byte, four 6-bit
        elements in three bytes. Memory that belongs to no element is 0.

        Args:
            values: of the tensor's dims. Floating-point types round; integer types must have the values.

        Raises:
            GraphError: no array, other dims, or a value that the integer type does not have.
        """
        self._check_array(values)
        if values.shape != self.dims:
            raise GraphError(f"tensor '{self.name}' has dims {self.dims}, the array has shape {values.shape}")
        raw = self._whole_elements()
        array = self._strided(raw)
        # Once where the stride is 0, so that no element is written twice.
        stored = tuple(slice(1 if stride == 0 else None) for stride in self.strides)
        with np.errstate(invalid="ignore", over="ignore"):
            array[stored] = self.data_type.rounded(values[stored])
        if self.data_type.is_integer and not np.array_equal(array, values):
            low, high = self.data_type.range
            raise GraphError(
                f"tensor '{self.name}' is {self.data_type.name}: its values are integers from {low} to {high}, equal "
                "along dims of stride 0"
            )
        if not self.data_type.is_packed:
            return raw
        packed = _aligned(self.nbytes)
        packed[...] = np.packbits(_bits(raw, self.data_type.bits), bitorder="little")
        return packed

    def unpack(self, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The values in the memory of the tensor, in its dims and strides: what ``pack`` made it of.

        Args:
            memory: uint8 ``[nbytes]``.

        Raises:
            GraphError: no array, another shape or dtype.
        """
        self._check_array(memory)
        if memory.dtype != np.uint8 or memory.shape != (self.nbytes,):
            raise GraphError(
                f"the memory of tensor '{self.name}' is uint8 [{self.nbytes}], got {memory.dtype} {list(memory.shape)}"
            )
        raw = self._whole_elements()
        if not self.data_type.is_packed:
            raw[...] = memory
        else:
            bits = np.unpackbits(memory, count=raw.size * self.data_type.bits, bitorder="little")
            raw[...] = np.packbits(bits.reshape(raw.size, -1), axis=1, bitorder="little")[:, 0]
        return self._strided(raw)

    def _check_array(self, given: object) -> None:
        if not isinstance(given, np.ndarray):
            raise GraphError(f"tensor '{self.name}': expected a numpy array, got {_shown(given)}")

    def _whole_elements(self) -> np.ndarray[Any, Any]:
        """Zeroed bytes for the tensor, of whole bytes per element."""
        return _aligned(extent(self.dims, self.strides) * self.data_type.numpy.itemsize)

    def _strided(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """``raw`` in the tensor's dims, strides and dtype."""
        dtype = self.data_type.numpy
        # A dim of one element has no next one, and may have any stride, larger ones than numpy has too.
        strides = [min(stride, _MOST_STRIDE) for stride in self.strides]
        # as_strided would not do: it refuses the 8-bit floats.
        return np.ndarray(self.dims, dtype, raw, 0, [dtype.itemsize * stride for stride in strides])

    def forget(self) -> None:
        """Drops what was inferred and keeps what was given."""
        self._resolved_name = self._given_name
        self._resolved_uid = self._given_uid
        self._resolved_dims = self._given_dims
        self._resolved_strides = self._given_strides
        self._resolved_dtype = self._given_dtype

    def resolve(
        self,
        *,
        name: str | None = None,
        uid: int | None = None,
        dims: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        data_type: DataType | None = None,
    ) -> None:
        """Fills in what is still open; what is known already stays."""
        if self._resolved_name is None and name is not None:
            self._resolved_name = name
        if self._resolved_uid is None and uid is not None:
            self._resolved_uid = uid
        if self._resolved_dims is None and dims is not None:
            self._resolved_dims = tuple(dims)
        if self._resolved_strides is None and strides is not None:
            self._resolved_strides = tuple(strides)
        if self._resolved_dtype is None and data_type is not None:
            self._resolved_dtype = data_type

    @property
    def has_dims(self) -> bool:
        """True once dims are given or inferred."""
        return self._resolved_dims is not None

    @property
    def has_strides(self) -> bool:
        """True once strides are given or inferred."""
        return self._resolved_strides is not None

    @property
    def has_data_type(self) -> bool:
        """True once the data type is given or inferred."""
        return self._resolved_dtype is not None

    @property
    def has_uid(self) -> bool:
        """True once the uid is given or assigned."""
        return self._resolved_uid is not None

    def check(self, *, written: bool) -> None:
        """Raises GraphError unless dims, strides and value fit together; ``written``: a node makes this tensor."""
        if self.value is not None and self.volume != 1:
            raise GraphError(f"tensor '{self.name}': a scalar value needs 1 element, dims are {self.dims}")
        if self.value is not None and not self._holds(self.value):
            raise GraphError(f"tensor '{self.name}': {_shown(self.value)} is no value of {self.data_type.name}")
        if len(self.strides) != self.rank:
            raise GraphError(
                f"tensor '{self.name}': {len(self.strides)} strides {_shown(self.strides)} for {self.rank} dims "
                f"{self.dims}; give one stride per dim"
            )
        if self.nbytes > _INT64_MAX:
            raise GraphError(f"tensor '{self.name}': dims {self.dims}, strides {self.strides} span 2^63 bytes or more")
        span = 1
        for stride, dim in sorted((s, d) for s, d in zip(self.strides, self.dims, strict=True) if d > 1 and s > 0):
            if stride < span:
                raise GraphError(
                    f"tensor '{self.name}': strides {self.strides} make rows of dims {self.dims} overlap or interleave"
                    "; packed strides are products of the faster dims"
                )
            span = stride * (dim - 1) + span
        if written and self.is_repeated:
            raise GraphError(
                f"tensor '{self.name}' is written by a node: stride 0 in {self.strides} is for inputs only"
            )

    def _holds(self, value: Scalar) -> bool:
        """True if the data type has the value; floating-point types round, and overflow to infinity."""
        try:
            number = float(value)
        except OverflowError:
            return False
        if self.data_type.is_float:
            return True
        low, high = 0, 1
        if self.data_type.is_integer:
            low, high = self.data_type.range
        return math.isfinite(number) and int(value) == value and low <= value <= high

    def freeze(self) -> None:
        """Ends all changes; sets ``physical``."""
        if not self._frozen:
            self.physical = physical(self.dims, self.strides)
            object.__setattr__(self, "_frozen", True)

    def _known(self, value: T | None, what: str) -> T:
        if value is None:
            raise GraphError(f"tensor '{self.name}' has no {what} yet; set it, or call Graph.validate() to infer it")
        return value
