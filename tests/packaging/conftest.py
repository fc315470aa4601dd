"""What the packaging tests share, made once per session: an sdist, the wheel made from it, and environments.

Everything is made from the unpacked sdist in a temporary directory: building in the working tree would replace the
modules that this process runs.
"""

import sys
import tarfile
from pathlib import Path

import pytest
from support.environments import BUILD_REQUIREMENTS, Environment, run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dist(tmp_path_factory) -> Path:
    """A directory with the sdist of this tree, the same unpacked in `source`, and the wheel that pip makes of that.

    Both are made in isolation from what is installed here. To install a directory, pip makes such a wheel and
    installs it, which `installed` does. The compiler does not optimize: that takes a quarter of the time.
    """
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT, cwd=out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "unpacked", filter="data")
    (unpacked,) = (out / "unpacked").iterdir()
    source = unpacked.rename(out / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", out, source, cwd=out, MANYTAIL_UNOPTIMIZED="1")
    return out


@pytest.fixture(scope="session")
def sdist(dist) -> Path:
    (path,) = dist.glob("*.tar.gz")
    return path


@pytest.fixture(scope="session")
def wheel(dist) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Environment:
    """An environment with the wheel, and with what a third party needs to build against it."""
    environment = Environment.create(tmp_path_factory.mktemp("installed"))
    environment.install(*BUILD_REQUIREMENTS, wheel)
    return environment


@pytest.fixture(scope="session")
def here() -> Environment:
    """The environment of this process. In development manytail is installed in it as an editable package."""
    return Environment(Path(sys.prefix))
