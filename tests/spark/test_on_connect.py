"""The example that stands in docs/questions, where the session is one of Spark Connect."""

import re
from pathlib import Path
from typing import Any

from .conftest import CONNECT

PAGE = Path(__file__).parents[2] / "docs" / "questions" / "serverless.md"

if CONNECT:

    def test_the_example_of_the_page(spark: Any) -> None:
        """It sends the package to the workers."""
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        (example,) = [block for block in blocks if ".remote(" in block]
        assert type(spark).__module__.startswith("pyspark.sql.connect")
        exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
