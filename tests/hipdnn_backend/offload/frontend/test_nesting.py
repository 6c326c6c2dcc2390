"""Models that nest or expand until they end the process: refused by count, before anything recurses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from hipdnn_backend.offload.frontend.nesting import MAX_DEPTH, check_text

_FUNCTION = "func.func private @f("

TEXTS = {
    "modules": "module {" * 6000 + "}" * 6000,
    "types": f"{_FUNCTION}{'tuple<' * 100_000}i1{'>' * 100_000})",
    "attributes": f"{_FUNCTION}) attributes {{a = {'[' * 100_000}{']' * 100_000}}}",
    "signs": f"#m = affine_map<(d0) -> ({'-' * 100_000}d0)>",
    "behind an open string": '"a\n" ' + "module {" * 6000,
    "behind a quote in a comment": 'module { // "\n' + "module {" * 6000,
    "arrows": "->" * 300 + "tuple<" * 300,
}


@pytest.mark.parametrize("name", TEXTS)
def test_deep_texts_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nest more than 200 deep|an expression is too long") as caught:
        check_text(TEXTS[name])
    assert caught.value.rule == "mlir-text"


@pytest.mark.mlir
def test_no_text_ends_the_process(tmp_path: Path) -> None:
    """What is as deep as is allowed, and what is refused, through the parser, in one process."""
    deep = {
        "modules": "module {" * MAX_DEPTH + "}" * MAX_DEPTH,
        "types": f"{_FUNCTION}{'tuple<' * (MAX_DEPTH - 1)}i1{'>' * (MAX_DEPTH - 1)})",
        "signs": f"#m = affine_map<(d0) -> ({'-' * 9000}d0)>\n{_FUNCTION}) attributes {{a = #m}}",
        "numbers": f"{_FUNCTION}) attributes {{a = dense<[{', '.join(['-1'] * 30_000)}]> : tensor<30000xi8>}}",
    }
    for number, text in enumerate([*deep.values(), *TEXTS.values()]):
        (tmp_path / f"{number:02}.mlir").write_text(text)
    code = (
        "import sys\nfrom pathlib import Path\nfrom hipdnn_backend.offload.errors import ModelError\n"
        "from hipdnn_backend.offload.mlir import new_context\n"
        "from hipdnn_backend.offload.frontend.mlir_text import parse\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try:\n        parse(path.read_text(), new_context())\n        print('parsed')\n"
        "    except ModelError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, (done.returncode, done.stdout)
    lines = done.stdout.splitlines()
    assert lines[: len(deep)] == ["parsed"] * len(deep)
    assert len(lines) == len(deep) + len(TEXTS)


def functions(count: int, calls: int) -> onnx.ModelProto:
    """Functions of which each calls the one before so many times."""
    imports = [helper.make_opsetid("", 22), helper.make_opsetid("local", 1)]
    made = [helper.make_function("local", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)]
    for number in range(1, count):
        names = ["a", *(f"t{i}" for i in range(calls - 1)), "b"]
        body = [helper.make_node(f"f{number - 1}", [names[i]], [names[i + 1]], domain="local") for i in range(calls)]
        made.append(helper.make_function("local", f"f{number}", ["a"], ["b"], body, imports))
    node = helper.make_node(f"f{count - 1}", ["x"], ["y"], "call", domain="local")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([node], "nested", [x], [y])
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=made)


@pytest.mark.parametrize(("count", "calls"), [(30, 2), (20, 3), (4000, 1), (300, 2)])
def test_functions_that_expand_without_end(count: int, calls: int) -> None:
    with pytest.raises(ModelError, match="the model's functions expand to [0-9]+ (nodes|levels)") as caught:
        prepare(functions(count, calls))
    assert caught.value.rule == "functions"


def test_functions_in_reason_are_expanded() -> None:
    graph = prepare(functions(5, 2))
    assert {node.op_type for node in graph.nodes} == {"Relu"}
    assert len(graph.nodes) == 16
    assert len(prepare(functions(100, 1)).nodes) == 1
