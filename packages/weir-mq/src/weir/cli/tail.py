"""`weir tail` shows messages as they come; `weir sub` takes them for a cluster, and acks them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import DEFAULT_URL, Timeout, Url, connected_for_ever
from weir.cli.streams import discard
from weir.commands.output import Form

if TYPE_CHECKING:
    from weir.client.arguments.positions import Start
    from weir.client.client import Client
    from weir.model.topic import Order


Count = Annotated[
    int | None, typer.Option("-n", "--count", min=1, help="End after this many messages.")
]
OutputForm = Annotated[Form, typer.Option("-o", "--output", help="json: one object per line.")]


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
    order: Annotated[
        str | None,
        typer.Option(
            metavar="total|partition",
            help="total: all partitions in one order. [default: the topic's]",
        ),
    ] = None,
    form: OutputForm = Form.text,
    timeout: Timeout = "5s",
    url: Url = DEFAULT_URL,
) -> None:
    """Show the messages of a topic until Ctrl-C, or until its reader ends (`| head -1`).

    It waits for a broker that goes away meanwhile.
    """
    # At the latest there is nothing before today's end.
    begin = start or ("latest" if follow else "earliest")
    keys = [*map(os.fsencode, key)] if key else None
    place = _place(begin)

    async def work(client: Client) -> None:
        from weir.commands.consume import Tail

        shown = Tail(topic, place, follow, count, partition, keys, tag or None, _known(order), form)
        await shown.show(client, sys.stdout.buffer)

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


def _known(order: str | None) -> Order | None:
    """Return what has one order, None for the topic's. Raises `BadRequest`."""
    from weir.model.topic import check_order

    return None if order is None else check_order(order)


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Take Ctrl-C, and a reader of our output who has enough, for what they are: the end."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # as `head` does
        discard(sys.stdout)


def _place(begin: str) -> Start | int:
    """Return what `--from` means; an offset as a number."""
    from weir.client.arguments.positions import at
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


class Mode(StrEnum):
    """What a cluster promises about order; one keeps what it began with."""

    shared = "shared"
    keyed = "keyed"
    ordered = "ordered"


def sub(
    topic: Annotated[str, typer.Argument(help="The topic to consume.")],
    cluster: Annotated[str, typer.Option(help="The cluster that shares the messages.")],
    mode: Annotated[
        Mode,
        typer.Option(help="keyed: messages of a key in order; ordered: all, by one consumer."),
    ] = Mode.shared,
    count: Count = None,
    form: OutputForm = Form.text,
    timeout: Timeout = "5s",
    url: Url = DEFAULT_URL,
) -> None:
    """Consume a topic in a cluster until Ctrl-C, or until its reader ends (`| head -1`).

    Each is acked once it is printed. A cluster that is new begins at the earliest message. It
    waits for a broker that is away.

    `weir tail` shows messages without consuming them.
    """

    async def work(client: Client) -> None:
        from weir.client.arguments.choices import consumer_mode
        from weir.commands.consume import Sub

        taken = Sub(topic, cluster, consumer_mode(mode.value), count, form)
        await taken.take(client, sys.stdout.buffer)

    from weir.cli.output import hint

    with ending_quietly():
        connected_for_ever(url, timeout, work)
    if form is Form.text:
        hint(f"Next: weir cluster lag {topic} {cluster}")
