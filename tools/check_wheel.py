"""Checks wheels of manytail: `check_wheel.py WHEEL...` says what is wrong with each, and exits with 1 if anything is.

A wheel must be small, must hold the package and nothing else, and must be for a platform that PyPI accepts. Its modules
must be stripped, export only what Python looks up, need only the C library, and name no directory of the machine that
built them. Modules are read with pyelftools, which comes with auditwheel; so those of Linux are checked, those of macOS
and Windows are not.
"""

import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

LARGEST = 1_500_000  # bytes of a wheel
SUFFIXES = {".py", ".pyi", ".pxd", ".h", ".so", ".pyd", ".html", ".css", ".sql"}
LIBRARIES = re.compile(r"(libc|libpthread|libm|libc\.musl-\w+|ld-[\w-]+)\.so(\.\d+)?")


def complaints(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel, one line each."""
    size = wheel.stat().st_size
    if size > LARGEST:
        yield f"size: {size:,} bytes (expected: at most {LARGEST:,})"
    platform = wheel.stem.rpartition("-")[2]
    if platform == "any" or platform.startswith("linux_"):
        yield f"platform tag: {platform} (expected: of a platform, and for Linux what auditwheel repair finds)"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        yield from contents(names, wheel)
        for name in names:
            if name.endswith(".so"):
                for wrong in module(archive.read(name), PurePosixPath(name).name.partition(".")[0]):
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


def module(binary: bytes, name: str) -> Iterator[str]:
    """What is wrong with an extension module, if it is one of Linux (ELF)."""
    if not binary.startswith(b"\x7fELF"):
        return
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(binary))
    unstripped = [
        section.name
        for section in elf.iter_sections()
        if section.name == ".symtab" or section.name.startswith(".debug")
    ]
    if unstripped:
        yield f"sections: {' '.join(unstripped)} (expected: stripped)"
    exported = {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols() if is_exported(symbol)}
    if exported != {f"PyInit_{name}"}:
        yield f"exports: {' '.join(sorted(exported))} (expected: PyInit_{name} alone)"
    for tag in elf.get_section_by_name(".dynamic").iter_tags():
        if tag.entry.d_tag == "DT_NEEDED" and not LIBRARIES.fullmatch(tag.needed):
            yield f"needs: {tag.needed} (expected: the C library alone)"
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            yield f"path: {getattr(tag, 'rpath', None) or tag.runpath} (expected: none)"


def is_exported(symbol) -> bool:  # type: ignore[no-untyped-def]
    return symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")


def main(wheels: list[Path]) -> int:
    if not wheels:
        print("usage: check_wheel.py WHEEL...", file=sys.stderr)
        return 2
    wrong = 0
    for wheel in wheels:
        found = list(complaints(wheel))
        wrong += len(found)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {'good' if not found else f'{len(found)} wrong'}")
        for complaint in found:
            print(f"  {complaint}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
