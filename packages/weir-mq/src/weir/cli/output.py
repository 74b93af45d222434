"""What verbs print: tables and bars for people, JSON for programs; messages, one in each line.

Results go to stdout; progress, questions and hints go to stderr, and hints only to people.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from weir.model.message import Message

R = TypeVar("R")

#: How often a bar moves, and how often a line is printed where there is no terminal.
_BAR_SECONDS = 0.1
LINE_SECONDS = 2.0


def print_json(schema: str, settings: object, results: Mapping[str, Any]) -> None:
    """Print the one object of a product verb's `--json`: what was asked, and `results`."""
    print_object(schema, {}, settings, results)


def print_object(
    schema: str, where: Mapping[str, Any], settings: object, results: Mapping[str, Any]
) -> None:
    """Print a verb's one object of `--json`: the command, `where` it ran, settings, results."""
    import msgspec

    command = _utf8(shlex.join(["weir", *sys.argv[1:]]))
    head = {"schema": schema, "command": command, **where, "settings": _utf8(settings)}
    print(msgspec.json.format(msgspec.json.encode({**head, **results})).decode())


def _utf8(given: object) -> object:
    """Return what was given on the command line, with bytes that are no UTF-8 as escapes."""
    if isinstance(given, str):
        return given.encode(errors="backslashreplace").decode()
    if isinstance(given, list):
        return [*map(_utf8, given)]
    return {k: _utf8(v) for k, v in given.items()} if isinstance(given, dict) else given


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their headings; numbers stand to the right. Plain columns in a pipe."""
    cells = [[shown(cell) for cell in row] for row in rows]
    right = [all(isinstance(row[at], int | float) for row in rows) for at in range(len(columns))]
    if sys.stdout.isatty():
        _print_rich(columns, cells, right)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        print("  ".join(parts).rstrip())


def shown(value: object) -> str:
    """Return a value as people read it: numbers with separators, nothing as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def counted(count: int, one: str) -> str:
    """Return a count of things that are called `one`, and with an `s` if there are more or none."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def hint(text: str) -> None:
    """Tell a person, never a program, what to do next."""
    if sys.stderr.isatty() and sys.stdout.isatty():
        from rich.console import Console

        Console(stderr=True, highlight=False).print(text, style="dim", markup=False)


def typed(question: str, name: str, done: str = "deleted") -> bool:
    """Return whether the answer is `name`; if it is not, say that nothing was `done`."""
    print(f"{question}: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if answer.strip() == name:
        return True
    why = "that is not its name" if answer else "\nnobody is there to type it (--yes does not ask)"
    print(f"{why}: nothing was {done}", file=sys.stderr)
    return False


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr how far something is; yields what to call with the count so far, often."""
    if not sys.stderr.isatty():
        yield _every(
            LINE_SECONDS,
            total,
            lambda done: print(f"{label}: {done:,} of {total:,}", file=sys.stderr, flush=True),
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # It is drawn from `_every` and not by a thread, which would take turns from what is measured.
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), auto_refresh=False
    ) as bar:
        task = bar.add_task(label, total=total)
        yield _every(
            _BAR_SECONDS, total, lambda done: bar.update(task, completed=done, refresh=True)
        )


async def told_while(what: str, work: Awaitable[R]) -> R:
    """Return what `work` does; while it goes on, say on stderr for how long, each 2 s."""
    import asyncio

    began, going = time.monotonic(), asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([going], timeout=LINE_SECONDS))[0]:
            tell_waiting(what, began)
    finally:
        going.cancel()
    return going.result()


def tell_waiting(what: str, began: float) -> None:
    """Say on stderr that something is waited for since `began`, of the monotonic clock."""
    print(f"{what}: {time.monotonic() - began:,.0f} s so far", file=sys.stderr, flush=True)


def _every(seconds: float, total: int, show: Callable[[int], None]) -> Callable[[int], None]:
    due = time.monotonic() + seconds

    def update(done: int) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due or done == total:
            due = now + seconds
            show(done)

    return update


def _print_rich(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, to_right in zip(columns, right, strict=True):
        table.add_column(column, justify="right" if to_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


class Form(StrEnum):
    """How a message is written."""

    text = "text"
    json = "json"


class Output(Protocol):
    """Where messages are written. Both raise `BrokenPipeError` if nobody reads any more."""

    def write(self, data: bytes, /) -> object:
        """Take bytes, which may wait."""

    def flush(self) -> object:
        """Let whoever reads have all that was written."""


def line_of(form: Form) -> Callable[[Message], bytes]:
    """Return what makes a line of a message."""
    return json_line if form is Form.json else text_line


def text_line(message: Message) -> bytes:
    """Return a message as one line: where it is, its key and tag if it has them, its value."""
    parts = [f"{message.partition}/{message.offset}"]
    if message.key is not None:
        parts.append(f"key={printable(message.key)}")
    if message.tag is not None:
        parts.append(f"tag={printable(message.tag.encode())}")
    if (origin := message.origin) is not None:
        parts.append(f"hub={origin.hub:#x}/{origin.sn}{' verified' if origin.verified else ''}")
    if message.loaded:
        parts.append(printable(message.value))
    else:
        parts.append(f"({message.size:,} bytes, too large to show)")
    return "  ".join(parts).encode() + b"\n"


def printable(data: bytes) -> str:
    """Return bytes as text that cannot move a terminal's cursor or break a line."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def json_line(message: Message) -> bytes:
    """Return a message as a JSON object in one line; bytes that are no text come as base64."""
    import msgspec

    fields: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "stamp": message.stamp,
        "time_us": message.time,
        **_text_or_base64("key", message.key),
        "tag": message.tag,
        **_text_or_base64("value", message.value if message.loaded else None),
        **({} if message.loaded else {"value_bytes": message.size}),
        **({"origin": message.origin._asdict()} if message.origin is not None else {}),
        "headers": [
            {"name": name, **_text_or_base64("value", data)}
            for name, data in message.headers.items()
        ],
    }
    return msgspec.json.encode(fields) + b"\n"


def _text_or_base64(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": data}
