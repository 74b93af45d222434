"""`weir tail`: show messages as they come."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connecting import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.reader import Reader
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
            metavar="earliest|latest|OFFSET",
            help="Where to begin. [default: latest, or earliest with --no-follow]",
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
    form: Annotated[
        Form, typer.Option("-o", "--output", help="json: an object a line.")
    ] = Form.text,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the messages of a topic until Ctrl-C."""
    # At the latest there is nothing before today's end.
    begin = start or ("latest" if follow else "earliest")
    if begin not in ("earliest", "latest") and not begin.isdecimal():
        raise typer.BadParameter(
            f"{begin!r}: give earliest, latest, or an offset from 0 on", param_hint="--from"
        )

    async def work(client: Client) -> None:
        async with await _reader(client, topic, begin, partition, follow) as reader:
            await _show(reader, count, form)

    from weir.cli.output import hint
    from weir.errors import OffsetOutOfRange

    try:
        connected(url, work)
    except KeyboardInterrupt:
        pass  # how a tail ends
    except BrokenPipeError:
        # Whoever read our output has enough, as `head` does. What is still buffered must not
        # fail once more when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"{topic} does not hold what --from {begin} asks for; the nearest offset is "
            f"{error.detail:,}: give --from {error.detail}, or earliest",
            error.detail,
        ) from None
    if form is Form.text:
        hint(f"Next: weir pub {topic} hello, or weir tail {topic} --from earliest -o json")


async def _reader(
    client: Client, topic: str, begin: str, partition: int | None, follow: bool
) -> Reader:
    from weir.errors import BadRequest

    partitions = None if partition is None else [partition]
    if begin == "earliest":
        return client.reader(topic, start="earliest", partitions=partitions, follow=follow)
    if begin == "latest":
        return client.reader(topic, start="latest", partitions=partitions, follow=follow)
    if partition is None:
        count = len((await client.describe(topic)).addresses)
        if count > 1:
            raise BadRequest(
                f"{topic} has {count} partitions, each with offsets of its own: say which one "
                f"with --partition 0 to {count - 1}"
            )
    only = partition or 0
    return client.reader(topic, start={only: int(begin)}, partitions=[only], follow=follow)


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
