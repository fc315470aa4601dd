"""Builds the extension modules: every pyx/manytail/<name>.pyx becomes manytail.<name>.

All else about the package is declared in pyproject.toml. This file has what needs code: the compiler flags, which
depend on the compiler; the Cython directives; the headers, which are copied into the wheel; the wheel's bill of
materials; and the switches that the tests and CI set in the environment:

    MANYTAIL_SANITIZE=thread|address   instrument with TSan, or with ASan and UBSan (gcc and clang)
    MANYTAIL_DEBUG=1                   -O0 -g, C assertions on
    MANYTAIL_UNOPTIMIZED=1             -O0, all else as in a release: for tests that look at a wheel, not at its speed
    MANYTAIL_DELAYS=1                  planted delays between the steps of the algorithms, for stress runs; -O1
    MANYTAIL_COVERAGE=1                line tracing, for the Cython.Coverage plugin; far too slow to measure with

A build with MANYTAIL_DEBUG=1 or MANYTAIL_SANITIZE=address also ends the process where Python code begins to run while
its thread holds a lock of a structure (_lock.pyx). A build whose switches differ from those of the last build compiles
everything again.
"""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import Cython
import setuptools
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

BUILD = Path("build/cython")
HEADERS = sorted(Path("include").rglob("*.h"))

# Modules of plain Python that are compiled too, and work uncompiled. They take locks. A signal handler runs between any
# two instructions of interpreted code, and what it raises ends a section there; it never runs in compiled code.
BROKER = ("_protocol", "_routing", "_state", "_runtime", "_mailbox", "channel", "connection")
MAPPING = ("_leased", "_ledger", "_limits")
NEW_MAPS = ("blocks", "leases", "ledger", "sections")  # in no wheel, as all of _maps
QUEUES = ("_lanes", "_listener", "_locked", "_timer", "queue")  # beside the core: optimised for speed, as the core is
PLAIN = ["executor", *QUEUES, *(f"mapping/{name}" for name in MAPPING), *(f"broker/{name}" for name in BROKER)]
PLAIN += [f"_maps/limits/{name}" for name in NEW_MAPS]

DIRECTIVES = {
    "language_level": 3,
    "freethreading_compatible": True,
    "auto_pickle": False,  # nothing of ours is pickled: a base class refuses it, or object does
    "binding": True,
    "embedsignature": True,
    "embedsignature.format": "python",
}

GNU = ["-std=gnu11", "-fvisibility=hidden", "-fno-strict-aliasing"]
MSVC = ["/std:c11", "/experimental:c11atomics"]
# Three checks that UBSan makes at each pointer are left out, for a third of the compiler's time. ASan finds most faults
# of the first two. tests/native compiles the kernels with all checks.
SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize=null,object-size,pointer-overflow"],
}


def switch(name):
    """Whether an on/off switch of the environment is set. A value other than 0, 1 or nothing is an error."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise SystemExit(f"{name}={value!r}: expected 1 or 0")
    return value == "1"


def sanitizer():
    value = os.environ.get("MANYTAIL_SANITIZE", "")
    if value and value not in SANITIZERS:
        raise SystemExit(f"MANYTAIL_SANITIZE={value!r}: expected one of {', '.join(SANITIZERS)}")
    return value


SANITIZE, DEBUG, UNOPTIMIZED, DELAYS, COVERAGE = (
    sanitizer(),
    switch("MANYTAIL_DEBUG"),
    switch("MANYTAIL_UNOPTIMIZED"),
    switch("MANYTAIL_DELAYS"),
    switch("MANYTAIL_COVERAGE"),
)


def macros():
    defined = []
    if DELAYS:
        defined.append(("MT_DELAYS", "1"))
    if DEBUG or SANITIZE == "address":
        defined.append(("MT_COUNTS_LOCKS", "1"))
    if COVERAGE:
        # From Python 3.12 on lines would be reported through sys.monitoring, which the coverage plugin does not read.
        defined += [("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
    return defined


def is_gcc(compiler):
    """Whether the first word of a compiler's command is GCC."""
    said = subprocess.run([compiler[0], "--version"], capture_output=True, text=True, check=False).stdout
    return "Free Software Foundation" in said


def compile_flags(msvc, gcc, small):
    """`small`: of a module of plain Python above the core. -O3 would make it hardly faster, and larger by half, in
    thrice the time."""
    if msvc:
        return MSVC + (["/Od", "/Zi", "/UNDEBUG"] if DEBUG else ["/Od" if UNOPTIMIZED else "/O2"])
    # Many interpreters pass on the -g of their own build. With it, three quarters of a module are debug information.
    optimize = "-O0" if UNOPTIMIZED else "-O1" if DELAYS else "-Os" if small else "-O3"
    flags = GNU + (["-O0", "-g3", "-UNDEBUG"] if DEBUG else [optimize, "-g0"])
    if UNOPTIMIZED:  # its wheel has to keep to the size of a release's, and nothing unwinds C
        flags.append("-fno-asynchronous-unwind-tables")
    if gcc and optimize == "-O3":
        # gcc inlines until a module has grown by a share of its size, 40 %. Then a class that is added to a module
        # makes the kernel's functions calls: 10 instructions for each get of a subscriber, measured.
        flags.append("--param=inline-unit-growth=60")
    if SANITIZE:
        flags += [*SANITIZERS[SANITIZE], "-g1", "-O1", "-fno-omit-frame-pointer"]  # -g1: lines, for reports
    return flags


def link_flags(in_place):
    if SANITIZE:
        return SANITIZERS[SANITIZE]
    # A wheel carries no symbol table; a build in the tree keeps it for profilers and debuggers.
    strip = sys.platform == "linux" and not (in_place or DEBUG or COVERAGE)
    return ["-Wl,--strip-all"] if strip else []


def drop_stale_c(source):
    """Remove the C of a module whose own .pxd is public and newer: Cython looks for that beside the .pyx."""
    made = BUILD / source.with_suffix(".c")
    pxd = Path("python/manytail", source.stem).with_suffix(".pxd")
    if made.exists() and pxd.exists() and made.stat().st_mtime < pxd.stat().st_mtime:
        made.unlink()


def extensions():
    # Cython tracks the headers that a module names, but not the headers that those include.
    included = [*sorted(Path("python/manytail").glob("*.pxd")), *sorted(Path("pyx/manytail").glob("*.px[di]"))]
    depends = [str(path) for path in [*HEADERS, *included]]
    sources = sorted(Path("pyx/manytail").glob("*.pyx"))
    common = {"include_dirs": ["include"], "depends": depends, "define_macros": macros()}
    modules = [Extension(f"manytail.{source.stem}", [source.as_posix()], **common) for source in sources]
    if COVERAGE:
        return modules
    # Builds for tests of the core have one plain module: uncompiled, a signal handler would leave its mutex held.
    return modules + [plain(name) for name in (["_locked"] if SANITIZE or DELAYS else PLAIN)]


def plain(name):
    """The extension of a module of plain Python."""
    return Extension(f"manytail.{name.replace('/', '.')}", [f"python/manytail/{name}.py"])


def is_plain(module):
    return module.name.removeprefix("manytail.").replace(".", "/") in PLAIN


def translate(modules):
    """Give each extension the C of its source."""
    for module in modules:
        drop_stale_c(Path(module.sources[0]))
    plain_modules = [module for module in modules if is_plain(module)]
    kernels = [module for module in modules if not is_plain(module)]
    # In plain Python annotations are for readers: Cython would take `int` for a demand.
    translated = cythonized(kernels) + cythonized(plain_modules, annotation_typing=False)
    made = {module.name: module for module in translated}
    for module in modules:
        module.sources, module.depends = made[module.name].sources, made[module.name].depends


def cythonized(modules, **directives):
    return cythonize(
        modules,
        nthreads=os.cpu_count(),
        # Public .pxd files are in the package and shipped; private ones lie beside the .pyx.
        include_path=["python", "pyx"],
        build_dir=None if COVERAGE else str(BUILD),  # the coverage plugin looks for the C beside the .pyx
        # Comments with the Cython lines are two fifths of the C. The coverage plugin reads them.
        compiler_directives=DIRECTIVES | {"linetrace": COVERAGE, "emit_code_comments": COVERAGE} | directives,
    )


class BuildExt(build_ext):
    """build_ext that uses every core, with the flags of the compiler it finds."""

    def initialize_options(self):
        super().initialize_options()
        self.parallel = os.cpu_count()

    def finalize_options(self):
        super().finalize_options()
        self.in_tree = self.inplace or self.editable_mode  # setuptools clears `inplace` while it compiles
        if self.in_tree:
            # pip uses a new temporary directory for each editable install. A fixed one compiles only what changed.
            self.build_lib = self.build_temp = f"build/inplace{Path(sysconfig.get_config_var('EXT_SUFFIX')).stem}"

    def run(self):
        """Build. Build everything if the objects in the build directory were made with other switches."""
        if not self.in_tree:
            self.extensions = [module for module in self.extensions if "._maps." not in module.name]
        note = Path(self.build_temp, "switches")
        sanitizers = SANITIZERS.get(SANITIZE)
        now = f"{sanitizers=} debug={DEBUG} unoptimized={UNOPTIMIZED} delays={DELAYS} coverage={COVERAGE}\n"
        self.force = self.force or not note.exists() or note.read_text() != now
        note.unlink(missing_ok=True)  # if this build fails half-way, the next one compiles everything
        translate(self.extensions)  # here and not earlier: an sdist, or a query of the version, needs no C
        super().run()
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(now)

    def build_extensions(self):
        msvc = self.compiler.compiler_type == "msvc"
        if msvc and SANITIZE:
            raise SystemExit(f"MANYTAIL_SANITIZE={SANITIZE}: needs gcc or clang")
        if not msvc:
            # An interpreter of pyenv adds its own library directory as rpath, which exists on no other machine.
            self.compiler.linker_so = [flag for flag in self.compiler.linker_so if not flag.startswith("-Wl,-rpath")]
        gcc = not msvc and is_gcc(self.compiler.compiler_so)
        for module in self.extensions:
            small = is_plain(module) and module.name.removeprefix("manytail.") not in QUEUES
            module.extra_compile_args += compile_flags(msvc, gcc, small)
            module.extra_link_args += link_flags(self.in_tree)
        super().build_extensions()


class BuildPy(build_py):
    """build_py that copies the headers into the wheel, as manytail/include. An editable install reads them in place."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        for header in HEADERS:
            target = Path(self.build_lib, "manytail", header)
            self.mkpath(str(target.parent))
            self.copy_file(str(header), str(target))


class BdistWheel(bdist_wheel):
    """bdist_wheel that puts a bill of materials beside the metadata (PEP 770)."""

    def write_wheelfile(self, wheelfile_base, *arguments, **options):
        super().write_wheelfile(wheelfile_base, *arguments, **options)
        folder = Path(wheelfile_base, "sboms")
        folder.mkdir(exist_ok=True)
        made = json.dumps(materials(self.distribution.metadata), indent=1)
        (folder / "manytail.cdx.json").write_text(made + "\n", encoding="utf-8")


def materials(metadata):
    """The bill of materials of a wheel, CycloneDX 1.6. The modules need nothing but the C library and hold no code of
    others; Cython made their C. It is the same for the same versions, so it has no time and no serial number."""
    this = described("library", metadata.get_name(), metadata.get_version())
    tools = [("cython", Cython.__version__), ("setuptools", setuptools.__version__)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [described("application", *tool) for tool in tools]},
            "component": {**this, "licenses": [{"expression": metadata.license_expression}]},
        },
        "components": [],
        "dependencies": [{"ref": this["bom-ref"], "dependsOn": []}],
    }


def described(kind, name, version):
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":  # and not in the processes of cythonize, which import this file
    if sys.maxsize < 2**32:
        raise SystemExit("manytail needs a 64-bit Python: this one is of 32 bits")
    setup(ext_modules=extensions(), cmdclass={"bdist_wheel": BdistWheel, "build_ext": BuildExt, "build_py": BuildPy})
