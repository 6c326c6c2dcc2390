"""Operation graphs in the style of hipDNN's front end: build, validate, describe, save, and check against float64.

Needs numpy alone; ``iree_bridge`` compiles and runs what is built here.
"""

from fusilli_ground.support import Support
from graph_api.dtypes import DataType
from graph_api.errors import CompileError, ExecutionError, FusilliError, GraphError, NotSupportedError
from graph_api.graph import Arguments, Graph
from graph_api.node import OPS, Attributes, Node
from graph_api.ops.conv import ConvAttributes, ConvolutionMode
from graph_api.ops.custom_op import CustomOpAttributes
from graph_api.ops.matmul import MatmulAttributes
from graph_api.ops.norm import InvVarianceReading, LayernormAttributes, NormFwdPhase, RmsnormAttributes
from graph_api.ops.pointwise import PointwiseAttributes, PointwiseMode
from graph_api.ops.reduction import ReductionAttributes, ReductionMode
from graph_api.ops.resample import PaddingMode, ResampleAttributes, ResampleMode
from graph_api.ops.sdpa import AttentionImplementation, DiagonalAlignment, SdpaAttributes
from graph_api.tensor import TensorAttr

__all__ = [
    "OPS",
    "Arguments",
    "AttentionImplementation",
    "Attributes",
    "CompileError",
    "ConvAttributes",
    "ConvolutionMode",
    "CustomOpAttributes",
    "DataType",
    "DiagonalAlignment",
    "ExecutionError",
    "FusilliError",
    "Graph",
    "GraphError",
    "InvVarianceReading",
    "LayernormAttributes",
    "MatmulAttributes",
    "Node",
    "NormFwdPhase",
    "NotSupportedError",
    "PaddingMode",
    "PointwiseAttributes",
    "PointwiseMode",
    "ReductionAttributes",
    "ReductionMode",
    "ResampleAttributes",
    "ResampleMode",
    "RmsnormAttributes",
    "SdpaAttributes",
    "Support",
    "TensorAttr",
]
