"""Builds and runs the programs of tests/native: `make tsan`, `make asan` and `make model` are this script.

    native.py tsan      the drivers, tests/native/drive*.c, under ThreadSanitizer; then the extension modules in a
                        free-threaded CPython (smoke.py)
    native.py asan      the drivers under AddressSanitizer, LeakSanitizer and UBSan; then tests/core, tests/contract,
                        the long runs of tests/linear and the queues of tests/stdlib_queue, in an instrumented build
    native.py model     the kernels in the model checker (relacy), as many suites at once as there are cores

    native.py tsan -- -r 1000 mixed         arguments for the programs: only these run then

The programs have no interpreter. Cython makes one C or C++ file of the shipped kernels. What that file names of CPython
is never run; stubs that end the program replace it. All output is in build/native; --root uses another copy of the tree
(tools/mutants.py). Exit status: 0 nothing was found, 1 something was, 2 it could not be built or started, 3 a tool is
missing and cannot be installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SANITIZERS = {"tsan": "-fsanitize=thread", "asan": "-fsanitize=address,undefined"}
OPTIONS = {
    # history_size: finds races between accesses that are far apart
    "TSAN_OPTIONS": "halt_on_error=1 history_size=4 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1 halt_on_error=1 detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1",
}


class BuildError(Exception):
    """The output of a compiler that failed."""


class NotHere(Exception):
    """Something that the checks need cannot be installed on this machine."""


def quietly(command, **options):
    """What a command prints. Raises BuildError if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def older(target, sources):
    return not target.exists() or any(source.stat().st_mtime > target.stat().st_mtime for source in sources)


class Tree:
    """One copy of the sources and its build/native."""

    def __init__(self, root):
        self.root = root
        self.build = root / "build" / "native"
        self.build.mkdir(parents=True, exist_ok=True)
        self.sources = [
            path
            for folder, pattern in [
                ("include", "*.h"),
                ("pyx/manytail", "*.p*"),
                ("python/manytail", "*.pxd"),
                ("tests/native", "*.[chp]*"),
            ]
            for path in (root / folder).rglob(pattern)
        ]

    def kernels(self, cplus):
        """The C or C++ of each tests/native/*.pyx."""
        return [self.kernel(source, cplus) for source in sorted((self.root / "tests" / "native").glob("*.pyx"))]

    def kernel(self, source, cplus):
        made = self.build / f"{source.stem}.{'cpp' if cplus else 'c'}"
        sources = [path for path in self.sources if path.suffix in (".pyx", ".pxi", ".pxd")]
        if older(made, sources):
            include = ["-I", self.root / "python", "-I", self.root / "pyx", "-I", self.root / "pyx" / "manytail"]
            language = ["--cplus"] if cplus else []
            quietly(
                [
                    sys.executable,
                    "-m",
                    "cython",
                    "-3",
                    *language,
                    *include,
                    "--module-name",
                    source.stem,
                    "-o",
                    made,
                    source,
                ],
                cwd=self.root,
            )
        return made

    def program(self, name, compiler, source, flags):
        """Compile and link one program."""
        made = self.build / name
        kernels = self.kernels(cplus=compiler == "g++")
        if not older(made, [*kernels, *self.sources]):
            return made
        folders = [self.build, self.root / "include", source.parent, sysconfig.get_paths()["include"]]
        compiled = self.build / f"{name}.o"
        common = [
            *flags,
            "-ffunction-sections",
            "-fdata-sections",
            "-fno-strict-aliasing",
            "-Wno-unused-function",
            "-no-pie",
            "-fno-pie",
        ]
        if shutil.which(compiler) is None:
            raise NotHere(f"{compiler} is not on PATH")
        quietly([compiler, *common, *(f"-I{folder}" for folder in folders), "-c", source, "-o", compiled])
        link = [compiler, *common, "-Wl,--gc-sections", compiled]
        stubs = self.stubs(made, [*link, "-Wl,--unresolved-symbols=ignore-all", "-o", made])
        quietly([*link, stubs, "-o", made, "-lpthread"])
        return made

    def stubs(self, made, trial):
        """Names of CPython that the program mentions and never runs: defined as data, which cannot be called."""
        quietly(trial)
        names = [line.split()[-1] for line in quietly(["nm", "-u", made]).splitlines()]
        wanted = [name for name in names if name.startswith(("Py", "_Py"))]
        stubs = made.with_suffix(".stubs.s")
        stubs.write_text(
            '.data\n.section .note.GNU-stack,"",@progbits\n.data\n'
            + "".join(f".globl {name}\n{name}: .zero 256\n" for name in wanted)
        )
        return stubs

    def model(self, relacy, optimise="-O3"):
        """With every suite: each struct of tests/native/model that is made of `suite`."""
        folder = self.root / "tests" / "native" / "model"
        texts = "".join(path.read_text() for path in sorted(folder.iterdir()))
        suites = re.findall(r"^struct (\w+) : suite<", texts, re.MULTILINE)
        (self.build / "suites.inc").write_text("".join(f"EXPLORE({suite})\n" for suite in suites))
        flags = ["-std=gnu++14", optimise, "-DMT_MODEL=1", "-w", f"-isystem{relacy}"]
        return self.program("model", "g++", folder / "model.cpp", flags)

    def drivers(self):
        return sorted(path.stem for path in (self.root / "tests" / "native").glob("drive*.c"))

    def driver(self, name, sanitizer):
        flags = ["-std=gnu11", "-O1", "-g1", "-fno-omit-frame-pointer", "-DMT_DELAYS=1", SANITIZERS[sanitizer]]
        return self.program(f"{name}-{sanitizer}", "gcc", self.root / "tests" / "native" / f"{name}.c", flags)


def run(command, seconds=None, extra=None, **options):
    """Run a program with the sanitizers' options and show its output. 1: it found something, or ran out of time."""
    environment = os.environ | {name: os.environ.get(name, value) for name, value in OPTIONS.items()} | (extra or {})
    try:
        return int(
            subprocess.run(
                [str(part) for part in command], env=environment, timeout=seconds, check=False, **options
            ).returncode
            != 0
        )
    except subprocess.TimeoutExpired:
        print(f"{command[0]}: not done after {seconds} s", file=sys.stderr)
        return 1


def drive(tree, sanitizer, options):
    return max(run([tree.driver(name, sanitizer), *options.arguments]) for name in options.driver or tree.drivers())


def instrumented(tree, python, kind):
    """The directory of the extension modules, built with a sanitizer for that interpreter, apart from other builds."""
    base = tree.root / "build" / kind
    places = ["--build-base", base, "--build-lib", base / "lib"]
    quietly([python, "setup.py", "-q", "build", *places], cwd=tree.root, env=os.environ | {"MANYTAIL_SANITIZE": kind})
    return base / "lib"


def runtime(*names):
    return [quietly(["gcc", f"-print-file-name={name}"]).strip() for name in names]


def suite_under_asan(tree):
    """tests/core, tests/contract, loads of threads, and manytail.queue's own tests, with instrumented extension
    modules. The interpreter is not instrumented, so its leaks do not count.

    What tests repeat, they repeat a quarter as often as in `make test` (tests/support/counts.py).
    Left out: tests of resident memory, which includes freed memory that ASan holds back; and the one of when the GIL is
    released, which repeats bulk calls for half a minute.
    """
    modules = instrumented(tree, sys.executable, "address")
    # Generators and longjmp switch stacks in ways unknown to ASan: keep its fake stacks off under the interpreter.
    options = {"ASAN_OPTIONS": "detect_leaks=0 halt_on_error=1 allocator_may_return_null=1", "PYTHONMALLOC": "malloc"}
    options |= {"MANYTAIL_PART": os.environ.get("MANYTAIL_PART") or "4"}
    path = f"{modules}{os.pathsep}{tree.root / 'tests' / 'native' / 'asan'}"
    options |= {"LD_PRELOAD": " ".join(runtime("libasan.so", "libubsan.so")), "PYTHONPATH": path}
    spread = f"--numprocesses={os.cpu_count() + 1}"
    suite = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        spread,
        "-p",
        "no:cacheprovider",
        "-m",
        "not rss",
        "--deselect=tests/core/test_index_multiqueue.py::test_bulk_calls_release_the_gil",
        tree.root / "tests" / "core",
        tree.root / "tests" / "contract",
        tree.root / "tests" / "linear" / "test_long_runs.py",
        tree.root / "tests" / "stdlib_queue" / "test_contract.py",
        tree.root / "tests" / "stdlib_queue" / "test_modes.py",
    ]
    return run(suite, cwd=tree.root, extra=options)


def smoke_under_tsan(tree, python):
    """tests/native/smoke.py with instrumented modules in an interpreter that is not instrumented.

    TSan does not see how such an interpreter orders memory accesses, so it reports races that are none. A report counts
    if both sides are in our code, or if one is and the other's stack is lost. Nothing of ours is suppressed.
    """
    modules = instrumented(tree, python, "thread")
    clockwait = tree.build / "tsan_clockwait.so"
    quietly(["gcc", "-shared", "-fPIC", "-O1", tree.root / "tests" / "native" / "tsan_clockwait.c", "-o", clockwait])
    options = {
        "TSAN_OPTIONS": "halt_on_error=0 history_size=7 exitcode=0",
        "PYTHON_GIL": "0",
        "PYTHONPATH": str(modules),
    }
    options["LD_PRELOAD"] = " ".join([*runtime("libtsan.so"), str(clockwait)])
    load = [python, tree.root / "tests" / "native" / "smoke.py"]
    done = subprocess.run(load, capture_output=True, text=True, env=os.environ | options, check=False)
    reports = done.stderr.split("=" * 18 + "\n")
    races = [report for report in reports if report.startswith("WARNING: ThreadSanitizer")]
    ours = [report for report in races if in_our_code(report)]
    print(*ours, sep="\n", end="")
    if done.returncode:
        print(*(report for report in reports if report not in races), sep="", file=sys.stderr)
    print(
        f"smoke: exit {done.returncode}, {len(ours)} reports in our code, "
        f"{len(races) - len(ours)} in the interpreter, which is not instrumented"
    )
    return int(bool(ours) or done.returncode != 0)


def in_our_code(report):
    """Whether our modules made both accesses of a race: looks at the innermost frames outside the sanitizer."""
    sides = re.split(r"\n\n", report)[:2]
    frames = [re.findall(r"^ +#\d+ .*\((\S+)\+0x[0-9a-f]+\)$", side, re.MULTILINE) for side in sides]
    callers = [[module for module in modules if not module.startswith(("libtsan", "tsan_"))] for modules in frames]
    known = [modules[0] for modules in callers if modules]
    return bool(known) and all(re.match(r"_\w+\.cpython-.*\.so$", module) for module in known)


def tsan(tree, options):
    found = drive(tree, "tsan", options)
    if options.arguments or options.driver:
        return found
    if options.freethreaded:
        return found or smoke_under_tsan(tree, options.freethreaded)
    print("tsan: SKIPPED the extension modules: no free-threaded CPython; make test-freethreaded makes one")
    return found


def asan(tree, options):
    found = drive(tree, "asan", options)
    return found if options.arguments or options.driver else found or suite_under_asan(tree)


def relacy():
    """The directory of relacy's headers, which are downloaded once."""
    script = Path(__file__).with_name("fetch_relacy.sh")
    done = subprocess.run([str(script)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NotHere(f"{script.name} found no relacy")
    return done.stdout.strip()


def model(tree, options):
    program = tree.model(relacy())
    if options.arguments:
        return run([program, *options.arguments])
    suites = quietly([program, "-l"]).split()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(lambda suite: run([program, suite]), suites))


TARGETS = {"tsan": tsan, "asan": asan, "model": model}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the tree to test")
    parser.add_argument(
        "--freethreaded", type=Path, help="a free-threaded CPython that has Cython and setuptools, for tsan"
    )
    parser.add_argument(
        "--driver", action="append", metavar="NAME", help="tests/native/NAME.c alone; may be given again"
    )
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end], argparse.Namespace(arguments=given[end + 1 :]))
    began = time.monotonic()
    try:
        found = TARGETS[options.target](Tree(options.root.resolve()), options)
    except NotHere as error:
        print(error, file=sys.stderr)
        return 3
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.target}: {'FOUND SOMETHING' if found else 'nothing found'}, {time.monotonic() - began:.0f} s")
    return found


if __name__ == "__main__":
    sys.exit(main())
