"""What the terminal shows: steps, the bar while calls are made, the table at the end. Plain lines where the output is not a terminal."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .service import Counts

console = Console(highlight=False)


def step(name: str, text: str) -> None:
    """One line of the story."""
    console.print(f"[bold]{name:<9}[/bold] {text}", soft_wrap=True)


class Bar:
    """Follows the service's counts. `heard` is called by the thread that listens to the service."""

    def __init__(self, progress: Progress | None, task: TaskID | None, total: int) -> None:
        self._progress, self._task, self._total = progress, task, total
        self._tenths = 0
        self._lock = threading.Lock()

    def heard(self, counts: Counts) -> None:
        with self._lock:
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=counts.settled, in_flight=counts.in_flight, retries=counts.refused)
            elif self._total and counts.settled * 10 // self._total > self._tenths:
                self._tenths = counts.settled * 10 // self._total
                step("", f"{counts.settled:,} of {self._total:,} rows called, {counts.in_flight} in flight, {counts.refused:,} retries")


@contextmanager
def bar(title: str, total: int) -> Iterator[Bar]:
    """A live bar over `total` rows on a terminal, a line per tenth elsewhere."""
    if not console.is_terminal:
        yield Bar(None, None, total)
        return
    columns = (
        TextColumn(f"[bold]{title:<9}[/bold]"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[in_flight]} in flight, {task.fields[retries]} retries"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, progress.add_task(title, total=total, in_flight=0, retries=0), total)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A small table, figures to the right."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(head):
        shown.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
