"""The weather service as seen from the job: started as a process of its own, followed by what it says, stopped and counted."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from .service import Counts

STOP_WITHIN = 30.0


class Running:
    """A running service. A context manager: whatever happens inside, the process is gone afterwards.

    with Running(database, seed=13, heard=print) as service:
        ...call service.url...
        counts = service.stop()     # the final counts: nothing can be added to them
    """

    def __init__(self, database: Path, *, seed: int, heard: Callable[[Counts], None] | None = None) -> None:
        self._command = [sys.executable, "-m", "manytail.demo.service", str(database), "--seed", str(seed)]
        self._heard = heard
        self.history: list[Counts] = []
        self.url = ""

    def __enter__(self) -> Self:
        # A session of its own: Ctrl-C in the terminal goes to the job, which then ends the service in order.
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout is not None
        greeting = self._process.stdout.readline()
        if not greeting:
            self._process.communicate()
            raise RuntimeError(f"the weather service did not start (exit status {self._process.returncode}): {' '.join(self._command)}")
        self.url = json.loads(greeting)["url"]
        self._listener = threading.Thread(target=self._listen, name="weather-service", daemon=True)
        self._listener.start()
        return self

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            counts = Counts(**json.loads(line))
            self.history.append(counts)
            if self._heard is not None:
                self._heard(counts)

    def stop(self) -> Counts:
        """Ends the service and returns its final counts."""
        self._end()
        if self._process.returncode != 0:
            raise RuntimeError(f"the weather service failed with exit status {self._process.returncode}: its counts are not known")
        return self.history[-1]

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._process.stdout.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()
