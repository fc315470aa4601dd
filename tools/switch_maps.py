"""Puts the new maps in the place of the old ones, in the worktree where it is started. It may be repeated at any commit.

    .venv/bin/python tools/switch_maps.py

It builds the modules, writes the stub and the pages that are made of docstrings. What it does is one commit's worth of changes, uncommitted. A text that it replaces and does not find is an error: then
this file and the tree do not fit, and one of them has to be changed. The landing of the switch deletes this file.
"""
# ruff: noqa: E501

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path.cwd()
OLD, NEW = ROOT / "python/manytail/mapping", ROOT / "python/manytail/_maps"
INSIDE = "tests/maps_inside"  # where tests/new_maps goes

RUFF = shutil.which("ruff", path=".venv/bin") or "ruff"

# Old private module -> where its names are.
MODULES = {
    "_options": "options", "_types": "outcomes", "_policies": "policies", "_fingerprint": "results.fingerprint",
    "_grants": "limits.grants", "_ledger": "limits.ledger", "_http": "http", "_item": "engine.item",
    "_remember": "results.memory", "_shared": "options", "_shared_store": "database.statements",
    "_shared_database": "database.kinds", "_codec": "results.identity", "_limits": "limits.objects",
}  # fmt: skip

# Tests of the inside of the old package. What the contract says of the same is tested by what stays, or by INSIDE.
GONE = [
    "tests/simulation", "tests/support/new_maps.py", "docs/design/new-maps.md",
]  # fmt: skip

# Names in tests that ask for the inside, old -> new.
NAMES = {
    "._store()": ".store()",
    "results._runner.stopping": "results._driver.halted",
    "results._runner": "results._driver",
    'assert "a key of type" in': 'assert "<Key instance" in',
    "    assert option.about.strip()\n": "",
    "(options.least, options.workers, options.gated) == (0, 3, False)": "(options.least, options.workers) == (0, 3)",
    '[("manytail-timer", str), ("manytail-loop", double)]': '[("manytail-service", str), ("manytail-service", double)]',
    'pytest.raises(ValueError, match="another thread")': 'pytest.raises(ValueError, match="already executing")',
}

# Tests within a file that ask for the inside of the old package.
DROPPED = {
    # Names of the inside, which no public means replaces.
    "tests/mapping/test_ends.py": [
        "test_a_worker_leaves_however_often_it_finds_no_memory",
        # Threads that have no memory to begin: no clause, and those of the standard library are waited for, too.
        "test_threads_that_threading_has_no_memory_to_set_up_do_their_work",
    ],
    "tests/mapping/test_gathering.py": [
        "test_fast_calls_are_handled_some_at_a_time",
        "test_an_interruption_of_stats_ends_the_map",
    ],
    "tests/mapping/test_inline.py": [
        "test_a_coroutine_that_is_cancelled_before_it_begins_is_not_called",
        "test_who_waits_for_the_work_of_another_thread_sleeps",
        "test_two_threads_do_not_ask_a_database_at_once",
        "test_what_an_interrupted_map_has_not_recorded_is_recorded_later",
    ],
    "tests/mapping/test_limits.py": [
        "test_a_wake_up_that_comes_while_the_timer_looks_is_not_lost",
        "test_a_block_is_for_one_use_at_a_time",  # no clause: a block may be entered by many at once
    ],
    "tests/mapping/test_setup.py": ["test_exit_sees_the_failure_that_another_thread_handles"],
    "tests/mapping/test_steps_of_ends.py": [
        "test_what_failed_without_a_call_is_told_after_a_stop_too",
        "test_an_interrupted_step_of_the_end_is_taken_up_by_the_next_event",
        "test_stop_halts_the_map_at_once_whoever_holds_the_lock",
        "test_a_dropped_map_without_workers_has_no_timer",
        "test_a_stop_does_not_take_back_the_cancellation_of_a_close",
    ],
    # `fatal` sees errors that fn raised, no refusal of the engine. The last one is about a lock.
    "tests/mapping/test_failing_maps.py": [
        "test_a_callable_is_asked_about_a_budget_and_a_breaker",
        "test_a_callable_is_asked_about_the_deadline_for_items_that_were_not_called",
        "test_a_failure_that_the_callable_was_not_asked_about_when_the_map_stops_is_yielded",
        "test_a_callable_is_asked_under_no_lock",
    ],
    # call(item) of a Caller from inside its own fn raises RuntimeError, always.
    "tests/mapping/test_adaptive.py": ["test_a_call_from_inside_fn_may_count_on_the_least_alone"],
    "tests/mapping/test_small_promises.py": ["test_a_map_inside_fn_may_use_the_other_workers"],
    "tests/shared/test_waits.py": ["test_a_file_system_without_what_sqlite_needs_is_refused_at_once"],
    "tests/arrow/test_runner.py": ["test_a_row_that_finishes_while_others_are_handled_is_not_forgotten"],
}


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout


def edit(path: str, *pairs: tuple[str, str]) -> None:
    file = ROOT / path
    text = file.read_text()
    for old, new in pairs:
        if old not in text:
            raise SystemExit(f"{path}: has no {old!r}")
        text = text.replace(old, new)
    file.write_text(text)


def move() -> None:
    stub = (OLD / "__init__.pyi").read_text()
    git("rm", "-rq", "--", OLD.relative_to(ROOT).as_posix())
    shutil.rmtree(OLD, ignore_errors=True)
    git("mv", "python/manytail/_maps", "python/manytail/mapping")
    shutil.rmtree(NEW, ignore_errors=True)  # bytecode
    (OLD / "__init__.pyi").write_text(stub_names(stub))
    git("rm", "-rq", "--", *[path for path in GONE if (ROOT / path).exists()])
    git("mv", "tests/new_maps", INSIDE)
    for path in git("ls-files", "tests", "python", "docs", "tools", "bench").splitlines():
        file = ROOT / path
        if file.suffix in (".py", ".md", ".toml") and file.exists() and path != "tools/switch_maps.py":
            text = file.read_text()
            moved = text.replace("manytail._maps", "manytail.mapping").replace("manytail/_maps", "manytail/mapping")
            moved = moved.replace("tests/new_maps", INSIDE).replace("new_maps.", "maps_inside.")
            moved = moved.replace("-m new_maps", "-m maps_inside").replace('prog="new_maps"', 'prog="maps_inside"')
            if file.suffix == ".py":
                moved = moved.replace("tests/simulation", INSIDE)
            if moved != text:
                file.write_text(moved)


def stub_names(text: str) -> str:
    for old, new in (
        ("_limits", "limits.objects"),
        ("_map", "maps"),
        ("_policies", "policies"),
        ("_shared", "database.shared"),
        ("_types", "outcomes"),
    ):
        text = text.replace(f"from .{old} import", f"from .{new} import")
    return text


def package() -> None:
    edit("pyproject.toml", ('exclude = ["manytail._maps*"] # until they take the place of manytail.mapping\n', ""))
    edit("setup.py", ('MAPPING = ("_leased", "_ledger", "_limits")\n', ""), (
        '*(f"mapping/{name}" for name in MAPPING), ', ""), ("  # in no wheel, as all of _maps", ""), (
        "_maps/limits/", "mapping/limits/"), ("NEW_MAPS", "MAPPING"), (
        '        if not self.in_tree:\n            self.extensions = [module for module in self.extensions if "._maps." not in module.name]\n', ""))  # fmt: skip
    edit("Makefile", ("\t$(patsubst %,python/manytail/mapping/%.py,_leased _ledger _limits) \\\n", ""), (
        "python/manytail/_maps/limits/", "python/manytail/mapping/limits/"), ("cd tests && ../$(BIN)/python -m simulation --seeds=$(SEEDS) $(ARGS)",
        "cd tests && ../$(BIN)/python -m maps_inside --seeds=$(SEEDS) $(ARGS)"), ("(tests/simulation)", f"({INSIDE})"),
        ("--ignore=tests/simulation ", ""), ("tests/new_maps/test_%.py", f"{INSIDE}/test_%.py"))  # fmt: skip
    edit("tools/platforms/common.py", ('"simulation"', '"maps_inside"'), (": none of `_maps`.", "."), (
        "sum('._maps.' not in module.name for module in all)", "len(all)"))  # fmt: skip
    edit("tools/stubtest_allowed.txt", ("manytail.mapping._types.", "manytail.mapping.outcomes."))
    stub = ROOT / "tools/mapping_stub.py"
    head, imports, rest = re.split(r"(from \._limits import.*?\n\n)", stub.read_text(), maxsplit=1, flags=re.DOTALL)
    found = re.findall(r"^from .*?(?:\(.*?\)|[^(]*?)\n", stub_names(imports), re.DOTALL | re.MULTILINE)
    stub.write_text(head + "".join(sorted(found)) + "\n" + rest)
    edit("python/manytail/mapping/__init__.py", (
        re.search(r'"""The maps, built anew.*?\n\n', (OLD / "__init__.py").read_text(), re.DOTALL)[0],
        '"""Call a slow function on every item of an iterable, many calls at once, in order, within limits.\n\n',
    ))  # fmt: skip
    shared = OLD / "database/shared.py"
    text = shared.read_text()
    if '__module__ = "manytail"' not in text:
        text = re.sub(
            r'(class Shared:\n    """.*?"""\n)', r'\1\n    __module__ = "manytail"\n', text, count=1, flags=re.DOTALL
        )
        shared.write_text(text)


def docs() -> None:
    """The page about the scheduler of before becomes one about the maps; `tools/switch` has it."""
    git("rm", "-q", "docs/design/mapping.md")
    git("mv", "tools/switch/mapping.md", "docs/design/mapping.md")
    edit("mkdocs.yml", ("      - The maps built anew: design/new-maps.md\n", ""))
    edit("docs/troubleshooting.md", (
        "`RuntimeError: fn calls its own Caller and would wait for itself (expected: submit, or more workers)`",
        "`RuntimeError: a call from inside fn that would wait for itself (expected: submit)`"), (
        "`fn` of a Caller calls the same Caller while all workers are busy.", "`fn` of a Caller calls the same Caller."), (
        "`ValueError: results already executing: next() runs in another thread, or was interrupted by this call`",
        "`ValueError: generator already executing`"))  # fmt: skip
    page = ROOT / "docs/design/reliability.md"
    head, rest = page.read_text().split("## The scheduler of maps keeps its promises\n", 1)
    _, rest = rest.split("\n## Random maps and random calls", 1)
    new = (ROOT / "tools/switch/reliability.md").read_text()
    page.write_text(f"{head}{new}\n## Random maps and random calls{rest}")
    edit("tests/mutants.toml", (
        """"the timer of a dropped map goes on" = "[-        self._timer.close()\\n-]"
""", """"a dropped map goes on" = '''
whatever the reason: an error, its end, the collector.\"\"\"
        [-self.stop(keeps=False)-]{+pass+}'''
"""), (
        """        if self.interrupts_itself()[-:
            return-]{+ or "_joined" in vars(self):
            return
        self._joined = True+}
        self.locked(no_step)""", """by a function or the input of the same map (expected: by another thread)")
        {+if driver.closed:
            return
        +}driver.stop(keeps=False)"""))  # fmt: skip
    git("rm", "-rqf", "tools/switch")
    git("rm", "-qf", "tools/switch_maps.py")


def tests() -> None:
    edit("tests/typing/test_hover.py", ("from manytail import _maps\n", "from manytail import mapping\n"), (
        "getattr(_maps, name)", "getattr(mapping, name)"), ("_of_the_maps_that_are_built_anew", ""))  # fmt: skip
    edit("tests/packaging/test_wheel.py", (
        'PLAIN += ["mapping/_ledger", "mapping/_limits"]',
        'PLAIN += [f"mapping/limits/{name}" for name in ("blocks", "leases", "ledger", "sections")]'))  # fmt: skip
    # `fatal` sees errors that fn raised, and a window of frames ends its growth at 256 MB, not 256 MiB.
    edit("tests/arrow/test_map_arrow.py", ("""    with pytest.raises(KeyError):
        list(map_arrow(lambda row: row.n, NUMBERS, LONG, errors="drop", fatal=lambda error: True, **options))
""", """    options["fatal"] = lambda error: True  # is asked about errors that fn raised: none
    others = rows_of(map_arrow(lambda row: row.n, NUMBERS, LONG, errors="drop", **options))
    assert [row["n"] for row in others] == [row["n"] for row in rows if not row["_error"]]
"""))  # fmt: skip
    edit("tests/arrow/test_runner.py", ("size = (1 << 20) - 64  # of", "size = 1_000_000  # of"))
    edit("tests/support/maps.py", ("manytail.mapping._threads", "manytail.mapping.runners.threads"), (
        'one._fate.get("runs", True)', 'one.driver._claim.get("runs", True)'))  # fmt: skip
    edit("tests/support/process.py", (
        '# The tests run on the new maps (see `new_maps`): so do their scripts.\n', ""), (
        'BEGIN = "import support.new_maps\\n" if "support.new_maps" in sys.modules else ""\n', 'BEGIN = ""\n'))  # fmt: skip
    layers = (ROOT / "tests/packaging/test_layers.py").read_text()
    layers = re.sub(r'    "_maps": SHARED \| \{[^\n]*\n', "", layers)
    (ROOT / "tests/packaging/test_layers.py").write_text(layers)
    locks = (ROOT / "tests/packaging/test_locks_lint.py").read_text()
    locks = re.sub(r'    \("mapping/_[^\n]*\n', "", locks).replace('("_maps/', '("mapping/')
    (ROOT / "tests/packaging/test_locks_lint.py").write_text(locks)
    edit("tests/packaging/test_wheel.py", (
        '        if "_maps" not in path.parts  # until it takes the place of `mapping`\n', ""), (
        ' or "/_maps/" in name', ""))  # fmt: skip
    edit("tests/packaging/test_signatures.py", ("manytail.mapping._policies", "manytail.mapping.policies"), (
        "manytail.mapping._map.concurrent_map", "manytail.mapping.maps.concurrent_map"))  # fmt: skip
    for path, names in DROPPED.items():
        drop(ROOT / path, names)
    for path in git("ls-files", "tests/mapping", "tests/shared", "tests/spark", "tests/contract").splitlines():
        file = ROOT / path
        if file.suffix == ".py" and file.exists():
            file.write_text(renamed(file.read_text()))
            take_out(file)
    for file in (ROOT / INSIDE).glob("test_*.py"):  # what compares with the old package
        take_out(file)
    subprocess.run([RUFF, "check", "-q", "--fix", "--select", "F401,I", "."], check=False)
    subprocess.run([RUFF, "check", "-q", "."], check=False)


def drop(file: Path, names: list[str]) -> None:
    """Take these functions and classes out of the file."""
    lines = file.read_text().splitlines(keepends=True)
    found = {node.name: node for node in ast.parse("".join(lines)).body if hasattr(node, "name")}
    for node in sorted([found[name] for name in names], key=lambda node: -node.lineno):
        first = min([node.lineno, *[one.lineno for one in node.decorator_list]])
        last = node.end_lineno
        while last < len(lines) and not lines[last].strip():
            last += 1
        del lines[first - 1 : last]
    file.write_text("".join(lines).rstrip() + "\n")


def take_out(file: Path) -> None:
    """Drop what uses names of the inside that no longer exist, and tell which tests these are."""
    text = file.read_text()
    tree = ast.parse(text)
    bad: set[str] = set()
    spans: list[tuple[int, int]] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("manytail.mapping"):
            missing = {one.name for one in node.names} - names_of(node.module or "")
            bad |= {one.asname or one.name for one in node.names if one.name in missing}
            if missing:
                kept = [one for one in node.names if one.name not in missing]
                spans.append((node.lineno, node.end_lineno or 0))
                if kept:
                    node.names = kept
                    spans[-1] = (*spans[-1], ast.unparse(node) + "\n")  # type: ignore[assignment]
    dropped: list[str] = []
    nodes = [node for node in tree.body if not isinstance(node, (ast.ImportFrom, ast.Import))]
    changed = True
    while changed:
        changed = False
        for node in list(nodes):
            used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            arguments = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
            texts = [
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            inner = [one.module for one in ast.walk(node) if isinstance(one, ast.ImportFrom)]
            inner += re.findall(r"from (manytail\.mapping\S*) import", "\n".join(texts))
            gone = [one for one in inner if one and one.startswith("manytail.mapping") and not names_of(one)]
            gone += list(re.findall(r"from manytail\.mapping import (_\w+)", "\n".join(texts)))
            gone += [
                name.name
                for one in ast.walk(node)
                if isinstance(one, ast.ImportFrom) and one.module == "manytail.mapping"
                for name in one.names
                if name.name not in names_of(one.module)
            ]
            if used & bad or arguments & bad or gone:
                nodes.remove(node)
                first = min([node.lineno, *[one.lineno for one in getattr(node, "decorator_list", [])]])
                spans.append((first, node.end_lineno or 0))
                targets = getattr(node, "targets", [])
                bad |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
                if hasattr(node, "name"):
                    bad.add(node.name)
                    dropped.append(node.name)
                changed = True
    if not spans:
        return
    lines = text.splitlines(keepends=True)
    for first, last, *kept in sorted(spans, reverse=True):
        lines[first - 1 : last] = kept
    file.write_text(re.sub(r"\n{4,}", "\n\n\n", "".join(lines)))
    tests = [name for name in dropped if name.startswith("test_")]
    left = len(re.findall(r"^(?:async )?def test_", file.read_text(), re.MULTILINE))
    print(f"{file.relative_to(ROOT)}: {len(tests)} tests of the inside are gone, {left} stay: {', '.join(tests)}")


def names_of(module: str) -> set[str]:
    """What a module of the maps defines or imports; empty: it does not exist."""
    path = ROOT / "python" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        return set()
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {one.asname or one.name for one in node.names}
        elif hasattr(node, "name"):
            found.add(node.name)
        else:
            found |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    if path.name == "__init__.py":
        found |= {one.stem for one in path.parent.iterdir() if not one.stem.startswith("_")}
    return found


def renamed(text: str) -> str:
    """With the new names of the modules of the inside, where these have the same names in them."""
    for old, new in NAMES.items():
        text = text.replace(old, new)
    text = re.sub(
        r"from manytail\.mapping\._idempotency import idempotency_key",
        "from manytail.mapping.frames import idempotency_key",
        text,
    )
    text = re.sub(
        r"from manytail\.mapping\._shared_store import", "from manytail.mapping.database.statements import", text
    )
    for old in ("_codec", "_grants", "_remember"):
        folder, name = MODULES[old].split(".")
        text = re.sub(
            rf"from manytail\.mapping import {old}\n", f"from manytail.mapping.{folder} import {name} as {old}\n", text
        )
    return re.sub(
        r"manytail\.mapping\.(_\w+)\b", lambda found: f"manytail.mapping.{MODULES.get(found[1], found[1])}", text
    )


def made() -> None:
    """What is made of the sources."""
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], check=True)
    for tool in ("mapping_stub", "docs_pages"):
        subprocess.run([sys.executable, f"tools/{tool}.py"], check=True)


move()
package()
tests()
docs()
made()
