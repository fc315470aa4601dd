"""What the packaging tests share: one sdist, one wheel made from it, and environments of their own, each built once for the session.

Everything is made from the unpacked sdist in a temporary directory: building in the working tree would replace the modules that this process runs.
"""

import sys
import tarfile
from pathlib import Path

import pytest
from support.environments import BUILD_REQUIREMENTS, Environment, run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dist(tmp_path_factory) -> Path:
    """A directory with the sdist of this tree and the wheel that `build` makes of that sdist, in isolation from all that is installed here."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
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
def source_tree(sdist, tmp_path_factory) -> Path:
    """The sdist, unpacked."""
    root = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(root, filter="data")
    (tree,) = root.iterdir()
    return tree


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Environment:
    """An environment with the wheel, and with what a third party needs to build against it."""
    environment = Environment.create(tmp_path_factory.mktemp("installed"))
    environment.install(*BUILD_REQUIREMENTS, wheel)
    return environment


@pytest.fixture(scope="session")
def editable(source_tree, tmp_path_factory) -> Environment:
    environment = Environment.create(tmp_path_factory.mktemp("editable"))
    environment.install(*BUILD_REQUIREMENTS)
    environment.install("--no-build-isolation", "--editable", source_tree)
    return environment
