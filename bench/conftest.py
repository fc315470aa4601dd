"""Lets test_single_thread.py import its neighbours, whatever directory pytest was started in."""
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
