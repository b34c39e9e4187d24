"""The package uses only public names of torch, as its syntax trees show."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "latent_morph"
MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(node):
    """The parts of a dotted name such as a.b.c, or an empty list for other nodes."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def is_private(part):
    return part.startswith("_") and not part.startswith("__")


def private_torch_names(source):
    tree, private, from_torch = ast.parse(source), set(), {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if (node.module or "").split(".")[0] == "torch":
                from_torch |= {alias.asname or alias.name for alias in node.names}
        else:
            continue
        private |= {
            n for n in names if n.split(".")[0] == "torch" and any(map(is_private, n.split(".")))
        }
    for node in ast.walk(tree):
        parts = dotted(node)
        if parts and parts[0] in from_torch and any(map(is_private, parts[1:])):
            private.add(".".join(parts))
    return private


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_uses_no_private_torch_name(path):
    assert private_torch_names(path.read_text()) == set()


def test_module_uses_no_private_torch_attribute():
    """Attributes of modules and tensors that were used before."""
    private = {"_compiled_call_impl", "_schema", "_is_view", "_load_from_state_dict"}
    for path in MODULES:
        nodes = ast.walk(ast.parse(path.read_text()))
        used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not used & private, path


@pytest.mark.parametrize(
    "source",
    [
        "import torch._C",
        "from torch._higher_order_ops.scan import scan",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "import torch\ntorch._C._len_torch_dispatch_stack()",
        "from torch.autograd import forward_ad\nforward_ad._current_level",
    ],
)
def test_private_torch_names_detects_private_names(source):
    assert private_torch_names(source)


def test_autograd_functions_are_recurrence_and_adjoint():
    """The solver's function only explains errors of torchdiffeq's adjoint."""
    functions = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                dotted(base)[-2:] == ["autograd", "Function"] for base in node.bases
            ):
                functions.append(f"{path.relative_to(PACKAGE)}:{node.name}")
    assert functions == ["flows/solver.py:_Adjoint", "recurrence.py:_LinearRecurrence"]
