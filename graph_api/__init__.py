"""Operation graphs in the style of hipDNN's front end: build, validate, describe, save, and check against float64.

Needs numpy alone; ``iree_bridge`` compiles and runs what is built here.
"""

from fusilli_ground.support import Support
from graph_api import ops
from graph_api.dtypes import DataType
from graph_api.errors import CompileError, ExecutionError, FusilliError, GraphError, NotSupportedError
from graph_api.graph import Arguments, Graph
from graph_api.node import OPS, Attributes, Node
from graph_api.ops import *  # noqa: F403 - attributes and enums of all operations, which a file there lists
from graph_api.tensor import TensorAttr

__all__ = [
    "OPS",
    "Arguments",
    "Attributes",
    "CompileError",
    "DataType",
    "ExecutionError",
    "FusilliError",
    "Graph",
    "GraphError",
    "Node",
    "NotSupportedError",
    "Support",
    "TensorAttr",
]
__all__ += ops.__all__
