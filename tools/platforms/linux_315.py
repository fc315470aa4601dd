"""CPython 3.15 on Linux x86-64: all tests that need no Spark. Cheap: core's essentials.

Debian's unstable release has it, with CPython's own tests. Its packages are unpacked into a folder, which becomes the
root of the processes here: they need a newer C library than most machines have. What they see of this machine is
mounted for them alone (unshare), so nothing is left behind. Needs root."""

import os
import shutil
from pathlib import Path

import common

DEBIAN = "python3.15,python3.15-dev,python3.15-venv,libpython3.15-testsuite,gcc,libc6-dev"
# A release of Debian that is years past still signs its unstable index with a date that has passed.
OLD = ('--aptopt=Acquire::Check-Valid-Until "false"', "--variant=apt")
SEEN = ("/proc", "/dev", str(common.ROOT))


def system() -> Path:
    """The folder with Debian and an environment /opt/tests."""
    if os.geteuid() != 0:
        raise common.UnavailableError("a root folder of its own needs root")
    common.need(mmdebstrap="mmdebstrap", util_linux="unshare")
    wanted = [*common.requirements("numpy", "test"), "psycopg[binary]", "cython>=3.3,<3.4", "setuptools>=77"]

    def make(folder: Path) -> None:
        folder.rmdir()
        common.fetch("mmdebstrap", "--quiet", *OLD, f"--include={DEBIAN}", "sid", folder)
        certificates = Path("etc/ssl/certs/ca-certificates.crt")
        for file in ("etc/resolv.conf", "etc/hosts", str(certificates)):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path("/") / file, folder / file)
        common.run(*inside(folder), "python3.15", "-m", "venv", "/opt/tests")
        pip = ("/opt/tests/bin/python", "-m", "pip", "install", "-q", "--prefer-binary", *wanted)
        common.fetch(*inside(folder), *pip, PIP_CERT=f"/{certificates}")
        common.aged(folder / "opt/tests")

    return common.once(f"debian-3.15-{common.tag_of(wanted)}", make)


def inside(folder: Path) -> list[str]:
    """The command that runs another with that folder as its root, in this checkout."""
    mounts = "".join(f'mkdir -p "$0{path}" && mount --rbind "{path}" "$0{path}" && ' for path in SEEN)
    enter = f'{mounts} exec chroot "$0" sh -c \'cd "{common.ROOT}" && exec "$@"\' sh "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", enter, str(folder)]


def linux_315() -> None:
    name, python = "linux_315", [*inside(system()), "/opt/tests/bin/python"]
    made = common.wheel(name, "manylinux_2_28_x86_64", "", "", python=python, known="maybe-uninitialized")
    site = common.unpacked(made)
    parts = [common.ESSENTIALS] if common.CHEAP else common.folders(common.WITHOUT_SPARK)
    common.tried(name, python, parts, ["--numprocesses=2"], PYTHONPATH=site)


common.main(linux_315)
