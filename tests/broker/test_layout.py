"""The files of the broker: no import cycle, and a state that uses no threads or clocks."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python/manytail/broker"
PURE = {"exceptions", "exchange_type", "spec", "_protocol", "_routing", "_state"}
IMPURE = {
    "_thread",
    "asyncio",
    "concurrent",
    "logging",
    "os",
    "queue",
    "random",
    "secrets",
    "selectors",
    "socket",
    "threading",
    "time",
    "uuid",
}


class WithoutTypes(ast.NodeTransformer):
    """Removes what only a type checker imports."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imports(path: Path) -> set[str]:
    """Full names, at any place in the file."""
    found: set[str] = set()
    for node in ast.walk(WithoutTypes().visit(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


GRAPH = {
    path.stem: {name.split(".")[2] for name in imports(path) if name.startswith("manytail.broker.")}
    & {each.stem for each in PACKAGE.glob("*.py")}
    for path in PACKAGE.glob("*.py")
}


def test_no_file_imports_itself_through_others() -> None:
    order = list(TopologicalSorter(GRAPH).static_order())
    assert set(order) == set(GRAPH)


@pytest.mark.parametrize("name", sorted(PURE))
def test_the_state_and_what_it_imports_know_no_thread_lock_clock_or_io(name: str) -> None:
    assert {module.split(".")[0] for module in imports(PACKAGE / f"{name}.py")} & IMPURE == set()
    assert GRAPH[name] <= PURE
