"""`weir pub` publishes messages; `weir tail` shows them as they come; `weir sub` takes them for a
cluster, and acks them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.admin.devices import hub_number
from weir.cli.connection import DEFAULT_URL, Timeout, Url, connected, connected_for_ever
from weir.cli.output import Form
from weir.cli.process import ending_quietly
from weir.cli.record import Record, RecordFile, recording
from weir.cli.retention import place

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.producer.producer import Producer
    from weir.client.producer.receipts import BatchReceipt, PendingMessage, Receipt
    from weir.client.reader.options import ReadingOrder

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
Count = Annotated[
    int | None, typer.Option("-n", "--count", min=1, help="End after this many messages.")
]
OutputForm = Annotated[Form, typer.Option("-o", "--output", help="json: one object per line.")]


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
    record: RecordFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the receipts, as one JSON object.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish messages; returns when all of them are durable. Readers see them at once."""
    from weir.cli.output import hint, print_json
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
        confirm = _confirming(topic, about["key"], confirmed, written if file is None else None)
        async with client.producer(topic, on_confirm=confirm) as producer:
            if file is not None:
                return [await _publish_file(producer, file, about, written, topic)]
            async for value in _given(values) if values else _lines():
                await producer.ready()
                one = producer.send(value, **about)
                if as_json:  # else a receipt for each of many lines would only fill the memory
                    sent.append(one)
        return [await one for one in sent]

    with recording(record) as written:
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
        print(f"{topic}/{receipts[0].partition}: offset {receipts[0].offset:,}")
    for line in _summary(topic, confirmed) if file is None else ():
        print(line)
    hint(f"Next: weir tail {topic} --from earliest")


def _confirming(
    topic: str, key: bytes | None, confirmed: list[BatchReceipt], written: Record | None
) -> Callable[[BatchReceipt], None]:
    """Return what takes receipts: into the list, and into the records if there are any."""

    def confirm(batch: BatchReceipt) -> None:
        confirmed.append(batch)
        if written is not None:
            written.sent(topic, batch, key)

    return confirm


async def _publish_file(
    producer: Producer, file: Path, about: dict[str, Any], written: Record | None, topic: str
) -> Receipt:
    with file.open("rb") as source:
        receipt = await producer.publish_from(source, **about)
    if written is not None:
        written.sent(topic, receipt, about["key"])
    return receipt


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r}: write NAME=VALUE", param_hint="--header")
    return name, os.fsencode(value)


def _timing(delay: str | None, due: str | None, ttl: str | None) -> dict[str, str | None]:
    """Return what is not to be told by the broker but here, before stdin is read."""
    from weir.client.arguments import timing

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
    import asyncio

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
#: How many chunks are read ahead.
_AHEAD = 4


async def _stdin() -> AsyncIterator[bytes]:
    """Yield the chunks of stdin as they come, until it ends. Raises `OSError` as reading does.

    A thread of its own, because an event loop cannot wait for a plain file; a daemon that reads
    below Python's buffers, because nothing can wake it at Ctrl-C.
    """
    import asyncio
    import threading

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
        bool,
        typer.Option("--follow/--no-follow", help="Wait for more, or stop at the current end."),
    ] = True,
    count: Count = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition. [default: all]")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Only messages with this key; may be repeated.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only messages with this tag; may be repeated.")
    ] = None,
    hub: Annotated[
        str | None, typer.Option(help="Only messages of this hub's devices: 2583 or 0xa17.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="total|partition|best-effort",
            help="total, best-effort: all partitions in one order. [default: the topic's]",
        ),
    ] = None,
    form: OutputForm = Form.text,
    record: RecordFile = None,
    timeout: Timeout = "5s",
    url: Url = DEFAULT_URL,
) -> None:
    """Show the messages of a topic until Ctrl-C, or until its reader ends (`| head -1`).

    It waits for a broker that goes away meanwhile.
    """
    # At the latest there is nothing before today's end.
    begin = start or ("latest" if follow else "earliest")
    keys = [*map(os.fsencode, key)] if key else None
    where, number = place(begin), None if hub is None else hub_number(hub)

    async def work(client: Client) -> None:
        from weir.cli.consume import Tail

        with recording(record) as written:
            what = topic, where, follow, count, partition, keys, tag or None, _known(order)
            await Tail(*what, form, written, number).show(client, sys.stdout.buffer)

    from weir.cli.output import hint
    from weir.errors import OffsetOutOfRange

    try:
        with ending_quietly():
            connected_for_ever(url, timeout, work)
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"{topic} does not hold the offset of --from {begin}; the nearest offset is "
            f"{error.detail:,}: give --from {error.detail}, or earliest",
            error.detail,
        ) from None
    if form is Form.text:
        hint(f"Next: weir pub {topic} hello, or weir tail {topic} --from earliest -o json")


def _known(order: str | None) -> ReadingOrder | None:
    """Return what has one order, None for the topic's. Raises `BadRequest`."""
    from weir.client.reader.options import BEST_EFFORT
    from weir.model.topic import check_order

    if order is None or order == BEST_EFFORT:
        return None if order is None else BEST_EFFORT
    return check_order(order)


class Mode(StrEnum):
    """What a cluster promises about order; one keeps what it began with."""

    shared = "shared"
    keyed = "keyed"
    ordered = "ordered"


def sub(
    topics: Annotated[
        list[str], typer.Argument(help='The topics to consume; "orders.*" is all that begin so.')
    ],
    cluster: Annotated[str, typer.Option(help="The cluster that shares the messages.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|last|-1h|TIME",
            help="Where a new cluster begins; an existing one continues.",
        ),
    ] = "earliest",
    mode: Annotated[
        Mode,
        typer.Option(help="keyed: messages of a key in order; ordered: all, by one consumer."),
    ] = Mode.shared,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Only messages with this tag; may be repeated. The cluster keeps it."),
    ] = None,
    count: Count = None,
    form: OutputForm = Form.text,
    record: RecordFile = None,
    timeout: Timeout = "5s",
    url: Url = DEFAULT_URL,
) -> None:
    """Consume topics in a cluster until Ctrl-C, or until its reader ends (`| head -1`).

    Each message is acked once it is printed. It waits for a broker that is away.

    `weir tail` shows messages without consuming them.
    """

    where = place(start)
    if isinstance(where, int):
        raise typer.BadParameter(
            f"{start!r}: an offset is one of a partition: weir cluster seek takes it",
            param_hint="--from",
        )

    async def work(client: Client) -> None:
        from weir.cli.consume import Sub
        from weir.client.arguments import consumer_mode

        with recording(record) as written:
            taken = Sub(
                topics,
                cluster,
                consumer_mode(mode.value),
                count,
                form,
                start=where,
                record=written,
                tags=tag or None,
            )
            await taken.take(client, sys.stdout.buffer)

    from weir.cli.output import hint

    with ending_quietly():
        connected_for_ever(url, timeout, work)
    if form is Form.text:
        hint(f"Next: weir cluster lag {topics[0]} {cluster}")
