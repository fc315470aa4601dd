"""What the tests of the demo share: its real input, read once."""

import pyarrow as pa
import pytest

from manytail.demo import data


@pytest.fixture(scope="session")
def flights() -> pa.Table:
    """Every flight of the year."""
    return data.flights()
