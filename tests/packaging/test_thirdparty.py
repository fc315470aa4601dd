"""A third-party extension module that does `cimport manytail`, built against a wheel and in this environment."""

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.thread_unsafe(reason="builds are shared by the session")]


@pytest.mark.parametrize("kind", ["installed", "here"])
def test_a_third_party_module_uses_the_structures_without_the_gil(kind, installed, here, tmp_path):
    environment = {"installed": installed, "here": here}[kind]
    project = shutil.copytree(Path(__file__).parent / "thirdparty", tmp_path / "thirdparty")
    environment.python("setup.py", "-q", "build_ext", "--inplace", cwd=project)
    assert len(environment.python("use.py", cwd=project).split()) == 6
