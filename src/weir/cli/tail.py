"""`weir tail`: show messages as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connecting import DEFAULT_URL, Timeout, Url, connected_for_ever

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.reader import Reader
    from weir.client.start import Start
    from weir.model.message import Message


class Form(StrEnum):
    """How a message is written."""

    text = "text"
    json = "json"


def tail(
    topic: Annotated[str, typer.Argument(help="The topic to show.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|last|OFFSET|-1h|TIME",
            help="Where to begin; a time as in -1h or 2026-11-22T10:00; last is the last message "
            "of each partition, or of --key. [default: latest, or earliest with --no-follow]",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end at today's end.")
    ] = True,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many messages.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition. [default: all]")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Only messages of this key; again for more.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only messages of this tag; again for more.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="total|partition",
            help="total: all partitions in one order, as everybody sees them. [default: the "
            "topic's]",
        ),
    ] = None,
    form: Annotated[
        Form, typer.Option("-o", "--output", help="json: an object a line.")
    ] = Form.text,
    timeout: Timeout = "5s",
    url: Url = DEFAULT_URL,
) -> None:
    """Show the messages of a topic until Ctrl-C. A broker that goes meanwhile is waited for."""
    # At the latest there is nothing before today's end.
    begin = start or ("latest" if follow else "earliest")
    place = _place(begin)

    async def work(client: Client) -> None:
        where = await _where(client, topic, place, partition)
        only = None if partition is None and not isinstance(where, dict) else [partition or 0]
        async with client.reader(
            topic, start=where, partitions=only, follow=follow,
            key=[*map(os.fsencode, key)] if key else None, tag=tag or None, order=order,
        ) as reader:  # fmt: skip
            await _show(reader, count, form)

    from weir.cli.output import hint
    from weir.errors import OffsetOutOfRange

    try:
        with ending_quietly():
            connected_for_ever(url, timeout, work)
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"{topic} does not hold what --from {begin} asks for; the nearest offset is "
            f"{error.detail:,}: give --from {error.detail}, or earliest",
            error.detail,
        ) from None
    if form is Form.text:
        hint(f"Next: weir pub {topic} hello, or weir tail {topic} --from earliest -o json")


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Take Ctrl-C, and a reader of our output who has enough, for what they are: the end."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # As `head` does. What is still buffered must not fail once more when the interpreter
        # flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _place(begin: str) -> Start | int:
    """Return what `--from` means; an offset as a number."""
    from weir.client.start import at
    from weir.errors import BadRequest

    if begin in ("earliest", "latest", "last"):
        return begin
    if begin.isdecimal():
        return int(begin)
    try:
        return at(begin)
    except BadRequest:
        raise typer.BadParameter(
            f"{begin!r}: give earliest, latest, last, an offset from 0 on, or a time as in -1h or "
            "2026-11-22T10:00",
            param_hint="--from",
        ) from None


async def _where(client: Client, topic: str, place: Start | int, partition: int | None) -> Start:
    """Return where to begin; an offset means something in one partition only."""
    from weir.errors import BadRequest

    if not isinstance(place, int):
        return place
    if partition is None:
        count = len((await client.describe(topic)).addresses)
        if count > 1:
            raise BadRequest(
                f"{topic} has {count} partitions, each with offsets of its own: say which one "
                f"with --partition 0 to {count - 1}"
            )
    return {partition or 0: place}


async def _show(reader: Reader, count: int | None, form: Form) -> None:
    write, flush = sys.stdout.buffer.write, sys.stdout.buffer.flush
    line = as_json if form is Form.json else as_text
    left = sys.maxsize if count is None else count
    async for delivered in reader.batches():
        for message in delivered.messages():
            write(line(message))
            left -= 1
            if not left:
                break
        flush()
        if not left:
            return


def as_text(message: Message) -> bytes:
    """Return a message as one line: where it is, its key and tag if it has them, its value."""
    parts = [f"{message.partition}/{message.offset}"]
    if message.key is not None:
        parts.append(f"key={printable(message.key)}")
    if message.tag is not None:
        parts.append(f"tag={printable(message.tag.encode())}")
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


def as_json(message: Message) -> bytes:
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
