"""`weir sub`: take messages as a consumer of a cluster, and ack them."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import DEFAULT_URL, Timeout, Url, connected_for_ever
from weir.cli.messages.tail import ending_quietly
from weir.commands.output import Form

if TYPE_CHECKING:
    from weir.client.client import Client


class Order(StrEnum):
    """What a cluster promises about order; one keeps what it began with."""

    shared = "shared"
    keyed = "keyed"
    ordered = "ordered"


def sub(
    topic: Annotated[str, typer.Argument(help="The topic to consume.")],
    cluster: Annotated[str, typer.Option(help="The cluster that shares the messages.")],
    mode: Annotated[
        Order,
        typer.Option(help="keyed: messages of a key in order; ordered: all, by one consumer."),
    ] = Order.shared,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many messages.")
    ] = None,
    form: Annotated[
        Form, typer.Option("-o", "--output", help="json: an object a line.")
    ] = Form.text,
    timeout: Timeout = "5s",
    url: Url = DEFAULT_URL,
) -> None:
    """Take a share of a topic's messages until Ctrl-C, or until nobody reads them (`| head -1`).

    Each is acked once it is printed. A cluster that is new begins at the earliest message. A broker
    that goes is waited for.
    `weir tail` looks without taking.
    """

    async def work(client: Client) -> None:
        from weir.commands.sub import Sub

        await Sub(topic, cluster, mode.value, count, form).take(client, sys.stdout.buffer)

    from weir.cli.output import hint

    with ending_quietly():
        connected_for_ever(url, timeout, work)
    if form is Form.text:
        hint(f"Next: weir cluster lag {topic} {cluster}")
