"""Fixtures of the suites that hold for every class."""
import sys
from pathlib import Path

# For `support` and `samples`.
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).parent / "lifecycle")]
