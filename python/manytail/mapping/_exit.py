"""What the interpreter's exit does, step by step: results are recorded, limits are reported, connections are closed.

It is registered once, when this module is imported: `atexit.register` and `unregister` in several threads at once crash
CPython 3.13 without the GIL.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable


class Steps:
    """Each is set by the module that does it, if that is imported."""

    record: Callable[[], object] = staticmethod(int)
    report: Callable[[], object] = staticmethod(int)
    close: Callable[[], object] = staticmethod(int)


steps = Steps()


@atexit.register
def _run() -> None:
    """Each step, whatever those before it raise."""
    try:
        steps.record()
    finally:
        try:
            steps.report()
        finally:
            steps.close()
