"""Progress on stderr: bars for people, a line every few seconds where nobody watches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

_PLAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """How far a part is: messages `done` of `total`, None while that is unknown."""

    name: str
    doing: str
    done: int
    total: int | None


class _Count(ProgressColumn):
    """Messages done, with their thousands set apart."""

    def render(self, task: Task) -> Text:
        """Return "done of total"."""
        total = "" if task.total is None else f" of {task.total:>7,.0f}"
        return Text(f"{task.completed:>7,.0f}{total}")


class Bars:
    """One bar a part, by name in the order of the first `show`."""

    def __init__(self, console: Console) -> None:
        """Draw on this console."""
        self._console = console
        self._begun = self._plain = time.monotonic()
        self._progress = Progress(
            TextColumn("  [bold]{task.fields[name]:<5}"),
            BarColumn(bar_width=40),
            _Count(),
            TextColumn("[dim]{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, steps: Sequence[Step]) -> None:
        """Show how far each part is."""
        for step in steps:
            if step.name not in self._tasks:
                self._tasks[step.name] = self._progress.add_task("", name=step.name, total=None)
            self._progress.update(
                self._tasks[step.name],
                completed=step.done,
                total=step.total,
                description=step.doing,
            )
        now = time.monotonic()
        if not self._console.is_terminal and now - self._plain > _PLAIN_SECONDS:
            self._plain = now
            counts = "  ".join(f"{step.name} {step.done:,}" for step in steps)
            self._console.print(f"{now - self._begun:4.0f} s  {counts}", highlight=False)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._progress.stop()
