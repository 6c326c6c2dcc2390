"""The backend itself: from a graph of Dynamo's through AOTAutograd to compiled forward and backward graphs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from fusilli_ground.errors import OptionError
from hipdnn_backend.engine import Engine
from hipdnn_backend.offload.model import engines_for
from hipdnn_backend.offload.torch_compile.claims import tensors_of
from hipdnn_backend.offload.torch_compile.compiling import compile_graph
from hipdnn_backend.offload.torch_compile.decompositions import decompositions, tracing
from hipdnn_backend.offload.torch_compile.later import Later, Running
from hipdnn_backend.offload.torch_compile.options import CompileOptions
from hipdnn_backend.offload.torch_compile.programs import device_name
from hipdnn_backend.offload.torch_compile.report import NotCompiledByEnginesError, record
from hipdnn_backend.offload.torch_compile.sizes import BySizes, check_shapes

__all__ = ["fusilli"]

_VARARGS: Final = inspect.CO_VARARGS
_VARKEYWORDS: Final = inspect.CO_VARKEYWORDS


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
    if given.shapes:
        check_shapes(module, given, None if entry.is_begun else _arguments())
    entry.is_begun = True
    if any(map(_is_symbolic, example_inputs)):
        compile_ = partial(_compiled, options=given, entry=entry)
        return torch._dynamo.disable(BySizes(module, given, compile_, entry).call)
    return _compiled(module, example_inputs, options=given, entry=entry)


def _compiled(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CompileOptions,
    entry: Any,
    later: bool = False,
    backward: bool = False,
) -> Callable[..., Any]:
    """A graph compiled for arguments.

    Args:
        module: the graph.
        example_inputs: what it will be called with.
        options: of the user.
        entry: where it is told.
        later: PyTorch runs what it traced until the code is there.
        backward: the graph of its gradients is compiled at once, not when it first runs.
    """
    waiting: list[Later] = []

    def compiler(kind: str, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compiled = partial(compile_graph, graph, kind, _engines(_name(graph), options.engines), options)
        if later:
            made = Later(graph.forward, compiled, entry)
            waiting.append(made)
            return make_boxed_func(made)
        ready = compiled()
        entry.graphs.append(ready.report)
        return make_boxed_func(ready.call)

    compiles = aot_autograd(
        fw_compiler=partial(compiler, "forward"),
        bw_compiler=partial(compiler, "backward"),
        inference_compiler=partial(compiler, "inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    try:
        with tracing(), functorch_config.patch(force_non_lazy_backward_lowering=backward):
            made = compiles(module, example_inputs)
    except (OptionError, NotCompiledByEnginesError, TorchDynamoException):
        raise
    except Exception as error:  # AOTAutograd traces what the user wrote, and raises whatever that does
        if options.strict:
            raise
        entry.fails("could not be compiled", error)
        return module.forward
    return Running(made, waiting) if later else made


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


def _arguments() -> tuple[str, ...] | None:
    """The names of the arguments of what is compiled now; None if that is not known."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        root: Any = InstructionTranslator.current_tx().output.root_tx
        code = root.f_code
    except AttributeError:  # nothing is being traced
        return None
    count = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[: count + bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)]


def _owner() -> Any:
    """The object of `torch.compile` that calls the backend now; the backend itself if somebody else calls it."""
    from torch._dynamo.eval_frame import innermost_backend
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        compiler = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:  # nothing is being traced
        return fusilli
    return fusilli if compiler is None else innermost_backend(compiler)
