"""The marker of pytest-run-parallel, for interpreters that have no such plugin."""
import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "thread_unsafe: touches what the whole process shares (the switch interval, many threads)"
    )
