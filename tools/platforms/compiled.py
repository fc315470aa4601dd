"""Compiled and linked, never run: macOS on both processors, musl, and Windows on arm64, by the compiler of zig; and the
branches of the headers for Visual Studio, by clang without GNU's extensions. Cheap: one module, which has all kernels
in it, is compiled and not linked, without macOS on x86-64."""

from pathlib import Path

import common

SAMPLE = common.ROOT / "build/cython/pyx/manytail/_nogil.c"
FLAGS = ["-std=gnu11", "-fPIC", "-fno-strict-aliasing", "-O0", "-Wall", "-Werror", "-Wno-unused-function"]


def import_library() -> Path:
    """python314.lib for Windows on arm64, made of the names that the one of x86-64 exports."""
    base = common.cpython("windows-x86_64")
    folder = common.BUILD / "windows_arm64.lib"
    folder.mkdir(parents=True, exist_ok=True)
    script = (
        "import pefile, sys; p = pefile.PE(sys.argv[1], fast_load=True); p.parse_data_directories([0]); "
        "names = (s.name.decode() for s in p.DIRECTORY_ENTRY_EXPORT.symbols); "
        "print('LIBRARY python314.dll', 'EXPORTS', *names, sep='\\n')"
    )
    (folder / "python314.def").write_text(common.run(common.host(), "-c", script, base / "python314.dll"))
    dlltool = (common.host(), "-m", "ziglang", "dlltool", "-m", "arm64")
    common.run(*dlltool, "-d", folder / "python314.def", "-l", folder / "libpython314.a")
    return folder


def zig(name: str, target: str, tag: str, suffix: str, headers: Path, link: str = "", options: tuple = ()) -> None:
    compiler = f"{common.host()} -m ziglang cc -fno-sanitize=undefined -target {target}"  # which -O0 would switch on
    if not common.CHEAP:
        common.wheel(name, tag, suffix, compiler, link, ["--include-dirs", headers, *options])
        return
    made = common.BUILD / f"{name}.o"
    common.run(*compiler.split(), *FLAGS, "-I", "include", "-I", headers, "-c", SAMPLE, "-o", made)
    common.say(f"{name}: {SAMPLE.name} is compiled")


def visual_studio() -> None:
    """Each module in the standard's C, with _MSC_VER set and GNU's extensions an error. The headers of Windows are
    mingw's: those of Visual Studio are not to be had."""
    base = common.cpython("windows-x86_64")
    made = common.ROOT / "build/cython"  # which also has copies
    every = sorted(path for folder in ("pyx", "python") for path in (made / folder).rglob("*.c"))
    sources = [SAMPLE] if common.CHEAP else every
    clang = ("clang", "--target=x86_64-w64-mingw32", "-std=c11", "-fsyntax-only", "-fms-extensions", "-D_MSC_VER=1940")
    strict = ("-Wpedantic", "-Wgnu", "-Werror=gnu")
    mixed = ("-D_PID_T_", "-D__INTRIN_H")  # mingw's headers have what pyconfig.h and clang's own headers add to them
    for source in sources:
        common.run(*clang, *strict, *mixed, "-I", "include", "-isystem", base / "include", source)
    old = ("clang", "-E", "-U__clang__", "-D_MSC_VER=1934", "include/manytail/atomics.h")
    sentence = "manytail needs Visual Studio 2022 17.5 or newer, for C11 atomics"
    if sentence not in common.run(*old, check=False):
        raise common.FailedError(f"Visual Studio 17.4 is not refused with {sentence!r}")
    common.say(f"visual_studio: no GNU construct in {len(sources)} modules, in the branches of _MSC_VER")


# A module, its compiler's target, how it is linked, the platform of its wheel, and what check_wheel.py says of it.
MODULE = "void *PyInit_m(void) { return 0; }"
EXPORTED = f"__declspec(dllexport) {MODULE}"
FOREIGN = "int foreign(void); void *PyInit_m(void) { return foreign() ? 0 : PyInit_m; }"
FOREIGN_EXPORTED = FOREIGN.replace("; void", "; __declspec(dllexport) void")
MAC, WINDOWS = "macosx_11_0_arm64", "win_amd64"
MODULES = {
    "good on macOS": (MODULE, "aarch64-macos.11.0", "", MAC, ""),
    "of another processor": (MODULE, "x86_64-macos.11.0", "", MAC, "machine: 16777223"),
    "for a newer macOS": (MODULE, "aarch64-macos.12.0", "", MAC, "deployment target: 12_0"),
    "with a name too many": (f"{MODULE} int helper;", "aarch64-macos.11.0", "", MAC, "helper (expected: PyInit_m"),
    "with a path": (MODULE, "aarch64-macos.11.0", "-Wl,-rpath,/opt/python", MAC, "path: /opt/python"),
    "with a library of macOS": (FOREIGN, "aarch64-macos.11.0", "{}/libforeign.dylib", MAC, "needs: "),
    "good on Windows": (EXPORTED, "mingw", "", WINDOWS, ""),
    "for another Windows": (EXPORTED, "mingw", "", "win_arm64", "machine: 34404"),
    "with a name too many on Windows": (f"{MODULE} int helper;", "mingw", "", WINDOWS, "helper (expected: PyInit_m"),
    "with a library of Windows": (FOREIGN_EXPORTED, "mingw", "{}/foreign.dll", WINDOWS, "needs: foreign.dll"),
}
CHECK = "import sys; sys.path.insert(0, 'tools'); from check_wheel import module; "
CHECK += "print(*module(open(sys.argv[1], 'rb').read(), 'm', sys.argv[2]), sep='\\n')"


def faults() -> None:
    """tools/check_wheel.py finds each fault in a module for macOS or Windows that is made with it."""
    folder = common.BUILD / "faults"
    folder.mkdir(parents=True, exist_ok=True)

    def link(target: str, source: str, made: str, flags: str = "") -> None:
        (folder / "m.c").write_text(source)
        zig = (common.host(), "-m", "ziglang", "cc", "-target", target)
        compiler = ("x86_64-w64-mingw32-gcc", "-static-libgcc") if target == "mingw" else zig
        common.run(*compiler, "-shared", "-s", folder / "m.c", *flags.format(folder).split(), "-o", folder / made)

    for target, library in (("aarch64-macos.11.0", "libforeign.dylib"), ("mingw", "foreign.dll")):
        link(target, "int foreign(void) { return 1; }", library)
    for what, (source, target, flags, platform, expected) in MODULES.items():
        link(target, source, "m.so", flags)
        said = common.run(common.host(), "-c", CHECK, folder / "m.so", platform).strip()
        if bool(said) != bool(expected) or expected not in said:
            raise common.FailedError(f"check_wheel.py on a module {what}: {said!r} (expected: {expected!r})")
    common.say(f"check_wheel.py: {len(MODULES)} modules, judged right")


def compiled() -> None:
    common.need(clang="clang", gcc_mingw_w64_x86_64="x86_64-w64-mingw32-gcc")
    common.translated()
    if not common.CHEAP:
        faults()
    python = "include/python3.14"
    dynamic = "-undefined dynamic_lookup"  # as CPython's own modules on macOS, which find it in the process
    for processor, target in (("arm64", "aarch64"), ("x86_64", "x86_64"))[: 1 if common.CHEAP else 2]:
        headers = common.cpython(f"macosx-{processor}") / python
        tag = f"macosx_11_0_{processor}"
        zig(f"macos_{processor}", f"{target}-macos.11.0", tag, ".cpython-314-darwin.so", headers, dynamic)
    headers = common.cpython("linux-x86_64") / python
    zig("musl", "x86_64-linux-musl", "musllinux_1_2_x86_64", ".cpython-314-x86_64-linux-musl.so", headers)
    library = () if common.CHEAP else ("--library-dirs", import_library(), "--libraries", "python314")
    headers = common.cpython("windows-x86_64") / "include"
    zig("windows_arm64", "aarch64-windows-gnu", "win_arm64", ".cp314-win_arm64.pyd", headers, "", library)
    visual_studio()


common.main(compiled)
