"""Checks wheels of manytail: `check_wheel.py [--any-size] WHEEL...` says what is wrong with each, and exits with 1 if
anything is.

A wheel must be small (--any-size: one without optimisation need not be), must hold the package and nothing else, with a
bill of materials that is its own, and must be for a platform that PyPI accepts. Its modules must be for the processor
of its tag, export only what Python looks up and need only the C library. Those of Linux must be stripped, and name no
directory of the machine that built them; those of macOS must run where the tag says.

Modules are read with pyelftools, pefile and macholib.
"""

import io
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

LARGEST = 3_000_000  # bytes of a wheel
SUFFIXES = {".py", ".pyi", ".pxd", ".h", ".so", ".pyd", ".html", ".css", ".sql"}
LIBRARIES = re.compile(r"(libc|libpthread|libm|libc\.musl-\w+|ld-[\w-]+)\.so(\.\d+)?")
WINDOWS = re.compile(
    r"(python3\d+t?|kernel32|msvcrt|ucrtbase|vcruntime140(_1)?|api-ms-win-crt-[\w-]+)\.dll", re.IGNORECASE
)
MACOS = re.compile(r"/usr/lib/libSystem\.B\.dylib")
LINKERS = {"__dso_handle", "_mh_dylib_header", "__mh_dylib_header"}  # names that linkers of macOS add
# By the last word of a platform tag: the machine in the header of ELF, of PE, and of Mach-O.
MACHINES = {
    "x86_64": {"EM_X86_64", 0x01000007},
    "aarch64": {"EM_AARCH64"},
    "amd64": {0x8664},
    "arm64": {0xAA64, 0x0100000C},
}


def complaints(wheel: Path, any_size: bool = False) -> Iterator[str]:
    """What is wrong with a wheel, one line each."""
    size = wheel.stat().st_size
    if size > LARGEST and not any_size:
        yield f"size: {size:,} bytes (expected: at most {LARGEST:,})"
    platform = wheel.stem.rpartition("-")[2]
    if platform == "any" or platform.startswith("linux_"):
        yield f"platform tag: {platform} (expected: of a platform, and for Linux what auditwheel repair finds)"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        yield from contents(names, wheel)
        yield from materials(archive, wheel)
        for name in names:
            if name.endswith((".so", ".pyd")):
                for wrong in module(archive.read(name), PurePosixPath(name).name.partition(".")[0], platform):
                    yield f"{name}: {wrong}"


def contents(names: list[str], wheel: Path) -> Iterator[str]:
    metadata = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    for name in names:
        top, path = PurePosixPath(name).parts[0], PurePosixPath(name)
        if top == metadata:
            continue
        if top != "manytail" or (path.suffix not in SUFFIXES and path.name != "py.typed"):
            yield f"contents: {name} (expected: manytail/ with {' '.join(sorted(SUFFIXES))} py.typed, and {metadata}/)"
    if not any(name.endswith((".so", ".pyd")) for name in names):
        yield "contents: no extension module"


def materials(archive: zipfile.ZipFile, wheel: Path) -> Iterator[str]:
    """What is wrong with the bill of materials, which is where PEP 770 has it."""
    name, version = wheel.name.split("-")[:2]
    path = f"{name}-{version}.dist-info/sboms/{name}.cdx.json"
    try:
        bill = json.loads(archive.read(path))
        described = bill["bomFormat"], bill["metadata"]["component"]["purl"], bill["components"]
    except (KeyError, TypeError, ValueError) as error:
        yield f"materials: {path}: {type(error).__name__}: {error} (expected: CycloneDX with a component)"
        return
    expected = ("CycloneDX", f"pkg:pypi/{name}@{version}", [])
    if described != expected:
        yield f"materials: {described} (expected: {expected})"


def module(binary: bytes, name: str, platform: str) -> Iterator[str]:
    """What is wrong with an extension module of a platform, by its tag."""
    system = platform.partition("_")[0]
    read = {"win": portable_executable, "macosx": mach_o}.get(system, elf)
    try:
        found = read(binary, platform)
        machine = next(found)
        exported = next(found)
    except Exception as error:
        yield f"format: {type(error).__name__}: {error} (expected: a module of {platform})"
        return
    processor = next(key for key in ("x86_64", "aarch64", "amd64", "arm64") if platform.endswith(key))
    if machine not in MACHINES[processor]:
        yield f"machine: {machine} (expected: {processor})"
    if exported - LINKERS != {f"PyInit_{name}"}:
        yield f"exports: {' '.join(sorted(exported))} (expected: PyInit_{name} alone)"
    yield from found


def elf(binary: bytes, platform: str) -> Iterator[Any]:
    """The machine of a module of Linux, its exported names, and then what is wrong with it."""
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(binary))
    yield file["e_machine"]
    yield {symbol.name for symbol in file.get_section_by_name(".dynsym").iter_symbols() if is_exported(symbol)}
    unstripped = [
        section.name
        for section in file.iter_sections()
        if section.name == ".symtab" or section.name.startswith(".debug")
    ]
    if unstripped:
        yield f"sections: {' '.join(unstripped)} (expected: stripped)"
    for tag in file.get_section_by_name(".dynamic").iter_tags():
        if tag.entry.d_tag == "DT_NEEDED" and not LIBRARIES.fullmatch(tag.needed):
            yield f"needs: {tag.needed} (expected: the C library alone)"
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            yield f"path: {getattr(tag, 'rpath', None) or tag.runpath} (expected: none)"


def portable_executable(binary: bytes, platform: str) -> Iterator[Any]:
    """The same of a module of Windows."""
    import pefile

    file = pefile.PE(data=binary)
    yield file.FILE_HEADER.Machine
    yield {symbol.name.decode() for symbol in file.DIRECTORY_ENTRY_EXPORT.symbols}
    for library in file.DIRECTORY_ENTRY_IMPORT:
        if not WINDOWS.fullmatch(library.dll.decode()):
            yield f"needs: {library.dll.decode()} (expected: Python and the C library alone)"


def mach_o(binary: bytes, platform: str) -> Iterator[Any]:
    """The same of a module of macOS, whose deployment target must be that of the tag."""
    from macholib.MachO import MachO
    from macholib.SymbolTable import SymbolTable

    with tempfile.NamedTemporaryFile() as copy:  # macholib reads files only
        copy.write(binary)
        copy.flush()
        file = MachO(copy.name)
        (header,) = file.headers
        yield header.header.cputype
        symbols = SymbolTable(file, header).extdefsyms
        yield {name.decode().removeprefix("_") for _, name in symbols}
    for load, command, data in header.commands:
        kind = load.get_cmd_name()
        if kind in ("LC_LOAD_DYLIB", "LC_LOAD_WEAK_DYLIB", "LC_REEXPORT_DYLIB"):
            library = data.rstrip(b"\0").decode()
            if not MACOS.fullmatch(library):
                yield f"needs: {library} (expected: the C library alone)"
        if kind == "LC_RPATH":
            yield f"path: {data.rstrip(bytes(1)).decode()} (expected: none)"
        if kind in ("LC_BUILD_VERSION", "LC_VERSION_MIN_MACOSX"):
            number = int(getattr(command, "minos", None) or command.version)
            target = f"{number >> 16}_{number >> 8 & 255}"
            if not platform.startswith(f"macosx_{target}_"):
                yield f"deployment target: {target} (expected: that of the tag {platform})"


def is_exported(symbol) -> bool:  # type: ignore[no-untyped-def]
    return symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")


def main(arguments: list[str]) -> int:
    any_size = arguments[:1] == ["--any-size"]
    wheels = [Path(argument) for argument in arguments[any_size:]]
    if not wheels:
        print("usage: check_wheel.py [--any-size] WHEEL...", file=sys.stderr)
        return 2
    wrong = 0
    for wheel in wheels:
        found = list(complaints(wheel, any_size))
        wrong += len(found)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {'good' if not found else f'{len(found)} wrong'}")
        for complaint in found:
            print(f"  {complaint}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
