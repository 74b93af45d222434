"""`weir pub`: publish arguments, or the lines of stdin."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.producer.receipts import BatchReceipt, PendingMessage

Delay = Annotated[
    str | None,
    typer.Option(metavar="5m", help="Clusters get the messages no sooner than after this time."),
]
Due = Annotated[
    str | None,
    typer.Option(
        metavar="2026-11-22T10:00", help="Clusters get the messages no sooner than at this time."
    ),
]
Ttl = Annotated[
    str | None, typer.Option(metavar="1h", help="Clusters do not get the messages after this time.")
]


def pub(
    topic: Annotated[str, typer.Argument(help="The topic to publish to.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE", help="Default: the lines of stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of all messages.")] = None,
    tag: Annotated[str | None, typer.Option(help="The tag of all messages.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header of all messages; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Publish this file as one message; it may have any size.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition. [default: by key, or in turn]")
    ] = None,
    delay: Delay = None,
    due: Due = None,
    ttl: Ttl = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the receipts, as one JSON object.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish messages; returns when all of them are durable. Readers see them at once."""
    from weir.cli.output import hint, print_json
    from weir.client.producer.receipts import Receipt
    from weir.errors import WeirError

    if file is not None and values:
        raise typer.BadParameter("give a file or values, not both", param_hint="--file")
    about: dict[str, Any] = {
        "key": None if key is None else os.fsencode(key),
        "tag": tag,
        "headers": dict(_header(text) for text in header or ()) or None,
        "partition": partition,
        **_timing(delay, due, ttl),
    }
    confirmed: list[BatchReceipt] = []

    async def work(client: Client) -> list[Receipt]:
        sent: list[PendingMessage] = []
        async with client.producer(topic, on_confirm=confirmed.append) as producer:
            if file is not None:
                with file.open("rb") as source:
                    return [await producer.publish_from(source, **about)]
            async for value in _given(values) if values else _lines():
                await producer.ready()
                one = producer.send(value, **about)
                if as_json:  # else a receipt for each of many lines would only fill the memory
                    sent.append(one)
        return [await one for one in sent]

    try:
        receipts = connected(url, work)
    except (WeirError, OSError, KeyboardInterrupt) as error:
        _tell_of(confirmed, error)
        raise
    if as_json:
        about |= {"key": key, "headers": header}  # as they were given
        settings = {"url": url, "topic": topic, "file": file and str(file), **about}
        print_json("weir.pub/1", settings, {"receipts": receipts})
        return
    if file is not None:
        (receipt,) = receipts
        print(f"{topic}/{receipt.partition}: offset {receipt.offset:,}")
    for line in _summary(topic, confirmed) if file is None else ():
        print(line)
    hint(f"Next: weir tail {topic} --from earliest")


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r}: write NAME=VALUE", param_hint="--header")
    return name, os.fsencode(value)


def _timing(delay: str | None, due: str | None, ttl: str | None) -> dict[str, str | None]:
    """Return what is not to be told by the broker but here, before stdin is read."""
    from weir.client.arguments.values import timing

    try:
        timing(delay, due, ttl)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--delay, --due, --ttl") from None
    return {"delay": delay, "due": due, "ttl": ttl}


def _tell_of(confirmed: list[BatchReceipt], error: BaseException) -> None:
    """Say how much was published before it failed, or was stopped."""
    count = sum(batch.count for batch in confirmed)
    if count:
        many = "message was" if count == 1 else "messages were"
        end = "it was stopped" if isinstance(error, KeyboardInterrupt) else "it failed:"
        typer.echo(f"{count:,} {many} published before {end}", err=True)


def _summary(topic: str, confirmed: list[BatchReceipt]) -> list[str]:
    """Say where the messages are, a line for each run of offsets of a partition."""
    runs: list[list[int]] = []
    for batch in sorted(confirmed, key=lambda batch: (batch.partition, batch.offset)):
        behind = batch.offset + batch.count
        if runs and (runs[-1][0], runs[-1][2]) == (batch.partition, batch.offset):
            runs[-1][2] = behind
        else:
            runs.append([batch.partition, batch.offset, behind])
    lines = []
    for partition, first, behind in runs:
        where = (
            f"offset {first:,}" if behind == first + 1 else f"offsets {first:,} to {behind - 1:,}"
        )
        lines.append(f"{topic}/{partition}: {where}")
    return lines or ["nothing to publish"]


async def _given(values: list[str]) -> AsyncIterator[bytes]:
    for value in values:
        yield os.fsencode(value)  # the very bytes of the command line, text or not


async def _lines() -> AsyncIterator[bytes]:
    from weir.errors import TooLarge
    from weir.model.limits import BATCH_BYTES_MAX

    rest = b""
    async for chunk in _stdin():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > BATCH_BYTES_MAX:
            raise TooLarge(
                f"a line of stdin is over {BATCH_BYTES_MAX:,} bytes: send smaller ones, or a file "
                "as one message with --file"
            )
        await asyncio.sleep(0)  # batches go out while lines keep coming
    if rest:
        yield rest


_CHUNK_BYTES = 1 << 16
#: How many chunks are read ahead of whoever takes them.
_AHEAD = 4


async def _stdin() -> AsyncIterator[bytes]:
    """Yield the chunks of stdin as they come, until it ends. Raises `OSError` as reading does.

    A thread of its own, because an event loop cannot wait for a plain file; a daemon that reads
    below Python's buffers, because nothing can wake it at Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    slots = threading.Semaphore(_AHEAD)
    handle = sys.stdin.fileno()

    def read() -> None:
        got: bytes | OSError = b"-"
        while isinstance(got, bytes) and got:
            slots.acquire()
            try:
                got = os.read(handle, _CHUNK_BYTES)
            except OSError as error:
                got = error
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(queue.put_nowait, got)

    threading.Thread(target=read, name="weir-stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk
        slots.release()
