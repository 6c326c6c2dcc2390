"""Whether a model may be padded along an open dim; `analysis` says what is shown."""

from hipdnn_backend.offload.frontend.padding.analysis import PaddedEnds, padded_ends, probe_sizes
from hipdnn_backend.offload.frontend.padding.walk import NUMBER, NotPaddableError, NumberOfRows, Rows

__all__ = [
    "NUMBER",
    "NotPaddableError",
    "NumberOfRows",
    "PaddedEnds",
    "Rows",
    "padded_ends",
    "probe_sizes",
]
