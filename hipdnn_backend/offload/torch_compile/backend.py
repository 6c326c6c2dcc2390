"""The backend itself: from a graph of Dynamo's through AOTAutograd to compiled forward and backward graphs."""

from __future__ import annotations

import copy
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from fusilli_ground.errors import OptionError
from fusilli_ground.locks import fork_safe_lock
from hipdnn_backend.engine import Engine
from hipdnn_backend.offload.model import engines_for
from hipdnn_backend.offload.torch_compile.claims import tensors_of
from hipdnn_backend.offload.torch_compile.compiling import compile_graph
from hipdnn_backend.offload.torch_compile.decompositions import decompositions, tracing
from hipdnn_backend.offload.torch_compile.options import CompileOptions
from hipdnn_backend.offload.torch_compile.programs import device_name
from hipdnn_backend.offload.torch_compile.report import NotCompiledByEnginesError, record

__all__ = ["fusilli"]

_LOG: Final = logging.getLogger(__name__)


def fusilli(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What ``torch.compile(model, backend="fusilli")`` calls for each graph of Dynamo's.

    Args:
        module: the graph.
        example_inputs: what it will be called with.
        options: see `CompileOptions`.
        mode: of `torch.compile`; it changes nothing.

    Raises:
        OptionError: an option is unknown or has a value that means nothing.
        NotCompiledByEnginesError: in strict mode, operations run in PyTorch.
    """
    given = CompileOptions.read(options, mode)
    entry = record(_owner())
    if any(map(_is_symbolic, example_inputs)):
        return torch._dynamo.disable(_BySizes(module, given, entry).call)
    return _compiled(module, example_inputs, given, entry)


def _compiled(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, entry: Any
) -> Callable[..., Any]:
    def compiler(kind: str, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        made = compile_graph(graph, kind, _engines(_name(graph), options.engines), options)
        entry.graphs.append(made.report)
        return make_boxed_func(made.call)

    compiles = aot_autograd(
        fw_compiler=partial(compiler, "forward"),
        bw_compiler=partial(compiler, "backward"),
        inference_compiler=partial(compiler, "inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    try:
        with tracing():
            return compiles(module, example_inputs)
    except (OptionError, NotCompiledByEnginesError, TorchDynamoException):
        raise
    except Exception as error:  # AOTAutograd traces what the user wrote, and raises whatever that does
        if options.strict:
            raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        _LOG.warning("PyTorch runs a whole graph, because it could not be compiled: %s", reason)
        entry.whole.append(reason)
        return module.forward


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _name(graph: torch.fx.GraphModule) -> str:
    devices = {value.device for node in graph.graph.nodes for value in tensors_of(node.meta.get("val"))}
    chosen = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
    return device_name(chosen)


@functools.cache
def _engines(device: str, wanted: tuple[str, ...]) -> tuple[Engine, ...]:
    found = engines_for(device)
    names = [engine.name for engine in found]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise OptionError(
            f"option 'engines' names {', '.join(missing)}, which is not here; there are {', '.join(names)}"
        )
    return tuple(engine for engine in found if not wanted or engine.name in wanted)


def _owner() -> Any:
    """The object of `torch.compile` that calls the backend now; the backend itself if somebody else calls it."""
    from torch._dynamo.eval_frame import innermost_backend
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        compiler = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:  # nothing is being traced
        return fusilli
    return fusilli if compiler is None else innermost_backend(compiler)


class _BySizes:
    """A graph with symbolic sizes: compiled for the sizes of each call, the last ones are kept."""

    def __init__(self, module: torch.fx.GraphModule, options: CompileOptions, entry: Any) -> None:
        self._module = module
        self._numbers = _numbers(module.graph)
        self._options = options
        self._entry = entry
        self._made: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
        self._lock = fork_safe_lock()

    def call(self, *given: Any) -> Any:
        """Runs the graph on tensors, and numbers for its sizes."""
        numbers = {number: given[number].item() for number in self._numbers}
        key = (*map(_key, given), *numbers.values())
        with self._lock:
            call = self._made.get(key)
            if call is not None:
                self._made.move_to_end(key)
        if call is None:
            call = _compiled(_with_numbers(self._module, numbers), given, self._options, self._entry)
            with self._lock:
                self._made[key] = call
                while len(self._made) > self._options.max_shapes:
                    self._made.popitem(last=False)
        return call(*given)


def _numbers(graph: torch.fx.Graph) -> tuple[int, ...]:
    """The arguments that are numbers in a tensor, as Dynamo passes an epsilon where sizes are symbolic."""
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    return tuple(number for number, node in enumerate(arguments) if node.users and all(map(_is_item, node.users)))


def _is_item(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _with_numbers(module: torch.fx.GraphModule, numbers: Mapping[int, float]) -> torch.fx.GraphModule:
    """The graph for these numbers, which operators take as attributes."""
    if not numbers:
        return module
    made = copy.deepcopy(module.graph)
    arguments = [node for node in made.nodes if node.op == "placeholder"]
    for number, value in numbers.items():
        for item in list(arguments[number].users):
            for user in list(item.users):
                user.args, user.kwargs = torch.fx.map_arg(
                    (user.args, user.kwargs), lambda each, item=item, value=value: value if each is item else each
                )
            made.erase_node(item)
    return torch.fx.GraphModule(module, made)


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad
    return value
