"""Children of a fork, and threads beside it, for scripts that `run_script` starts."""

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .threads import DEADLINE, Task


def status_of_child(function: Callable[[], Any]) -> int:
    """Fork, and call the function in the child. Returns the child's status: 0 if the function returned, else its
    traceback is on stderr. A child that hangs is killed, after it has said where."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(int(DEADLINE))
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def in_child(function: Callable[[], Any]) -> None:
    """Fork, and call the function in the child, which must return."""
    status = status_of_child(function)
    assert status == 0, f"the child ended with status {status}"


def thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Start a thread. Returns what waits for its end and returns its return value, or its exception."""
    task = Task(function, args, kwargs)
    task.start()
    return lambda: task.outcome() or task.result()
