"""What jedi has parsed lies in a folder of this process: jedi writes its files in place, so that another process that
reads one at that moment finds half of it (`EOFError: Ran out of input`)."""

import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache_of_jedi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder))  # for the programs that tests start
        if importlib.util.find_spec("jedi"):
            patched.setattr("jedi.settings.cache_directory", str(folder / "jedi"))
        yield
