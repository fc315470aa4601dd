"""Linux on arm64: CPython 3.14 under qemu, modules made by gcc. The doctor and the essentials of core.

An emulator on x86-64 keeps the memory order of x86-64: this shows that it builds and behaves, and nothing about weak
memory orders, which the model checker explores. Not in the cheap part: an emulated processor takes ten times as long.
"""

from pathlib import Path

import common

LIBRARIES = "zlib1g libsqlite3-0 libbz2-1.0 liblzma5 libffi8 libssl3 libuuid1"
LIBRARIES += " libncursesw6 libtinfo6 libreadline8 libexpat1 libstdc++6 libgcc-s1"


def libraries() -> Path:
    """What CPython's modules are linked with, unpacked from Debian's packages and not installed."""

    def make(folder: Path) -> None:
        common.run("dpkg", "--add-architecture", "arm64")
        common.fetch("apt-get", "update", "-qq")
        names = [f"{library}:arm64" for library in LIBRARIES.split()]
        common.fetch("sh", "-c", 'cd "$0" && apt-get download -qq "$@"', folder, *names)
        for package in folder.glob("*.deb"):
            common.run("dpkg", "-x", package, folder)

    return common.once(f"arm64-libraries-{common.tag_of(LIBRARIES.split())}", make)


def arm64() -> None:
    name, gnu = "arm64", Path("/usr/aarch64-linux-gnu")
    common.need(qemu_user_static="qemu-aarch64-static", gcc_aarch64_linux_gnu="aarch64-linux-gnu-gcc",
                libc6_dev_arm64_cross=str(gnu / "lib/libc.so.6"))  # fmt: skip
    base, root = common.cpython("linux-arm64"), libraries()
    options = ["--include-dirs", base / "include/python3.14"]
    made = common.wheel(name, "manylinux_2_28_aarch64", ".cpython-314-aarch64-linux-gnu.so", "aarch64-linux-gnu-gcc",
                        options=options)  # fmt: skip
    site = common.unpacked(made)
    systems = ["manylinux2014_aarch64", "manylinux_2_28_aarch64"]
    path = [site, common.packages("arm64", systems, *common.requirements("numpy"))]
    folders = [base, gnu / "lib", root / "lib/aarch64-linux-gnu", root / "usr/lib/aarch64-linux-gnu"]
    starter = common.BUILD / "arm64-python"  # sys.executable, for the processes that tests start
    starter.write_text(
        "#!/bin/sh\n"
        f'exec qemu-aarch64-static -L {gnu} -0 "$0" -E LD_LIBRARY_PATH={":".join(map(str, folders))} '
        f'{base}/bin/python3.14 "$@"\n'
    )
    starter.chmod(0o755)
    environ = {"PYTHONHOME": str(base), "PYTHONPATH": ":".join(map(str, path))}
    common.tried(name, [starter], [[file] for file in common.ESSENTIALS], **environ)


common.main(arm64)
