"""What calls and blocks hold of a limit.

The end of a block or of a call does not wait for the lock of the limits: if another thread has it, that thread books
the end. So a test reads accounts as `used` and `take` do, under that lock, after what was put into the inbox before.
"""

from typing import Any

from manytail._maps.limits import sections


def reserved(limit: Any) -> float:
    return sections.run(lambda wakes: limit._account._reserved)


def waiting(limit: Any) -> int:
    """How many wait in its queue."""
    return sections.run(lambda wakes: len(limit._account.queue))
