"""`weir trace`: where one message is, in the core and at each relay, and which clusters have done
it.

Exit codes: 0 the core has the message; 1 it has not, or an error; 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.admin.devices import AsJson
from weir.cli.admin.hops import Hop, ask_relays, places_of
from weir.cli.connection import DEFAULT_URL, Url, connected
from weir.model.ids import LIMIT_MAX

if TYPE_CHECKING:
    from weir.client.administration import MessageTrace
    from weir.client.client import Client


def trace(
    message: Annotated[
        str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="As in shop/orders/0/1742.")
    ],
    relay: Annotated[
        list[str] | None,
        typer.Option(
            "--relay",
            metavar="weir://HOST[:PORT]",
            help="A relay to ask, beside those of the topology that is applied.",
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show where a message is: in the core and at each relay whether it is stored, skipped or not
    there yet, and when it came; and for each cluster its progress, and the consumer that holds it.

    Exit code 1 if the core does not have it.
    """
    from weir.cli.output import print_json

    topic, partition, offset = _place_of(message)

    async def work(client: Client) -> list[Hop[MessageTrace]]:
        return await _hops(client, url, relay or [], topic, partition, offset)

    hops = connected(url, work)
    core = hops[0].found
    assert core is not None  # it raises why it has no answer
    if as_json:
        asked = {"url": url, "topic": topic, "partition": partition, "offset": offset}
        found = {"presence": core.presence, "stamp": core.stamp or None, "hops": _hop_rows(hops),
                 "clusters": _cluster_rows(core)}  # fmt: skip
        print_json("weir.trace/1", asked, found)
    else:
        _tell(core, hops)
    if core.presence != "stored":
        raise typer.Exit(1)


def _place_of(message: str) -> tuple[str, int, int]:
    """Return topic, partition and offset. Raises `typer.BadParameter`."""
    *names, partition, offset = ["", "", *message.split("/")]
    topic = "/".join(name for name in names if name)
    if not topic or not (_is_number(partition) and _is_number(offset)):
        raise typer.BadParameter(
            f"{message!r} names no message: give TOPIC/PARTITION/OFFSET, as in orders/0/1742",
            param_hint="TOPIC/PARTITION/OFFSET",
        )
    return topic, int(partition), int(offset)


def _is_number(text: str) -> bool:
    """Return whether it is a number that a partition or an offset can have."""
    # Python reads no number of thousands of digits.
    return text.isdecimal() and len(text) <= len(str(LIMIT_MAX)) and int(text) <= LIMIT_MAX


async def _hops(
    client: Client, url: str, relays: Sequence[str], topic: str, partition: int, offset: int
) -> list[Hop[MessageTrace]]:
    def ask(place: Client) -> Awaitable[MessageTrace]:
        return place.trace(topic, partition, offset)

    found = await ask(client)
    places = [*await _relays_of(client, url, topic), *((one, one) for one in relays)]
    return [Hop("core", url, found), *await ask_relays(places, ask)]


async def _relays_of(client: Client, url: str, topic: str) -> list[tuple[str, str]]:
    """Return names and addresses of the relays that hold a topic, as the topology has them."""
    from weir.errors import Unauthorized

    try:
        state = await client.topology.describe()
    except Unauthorized:
        return []  # a user who may not see it names relays by `--relay`
    full_name = topic if "/" in topic else f"default/{topic}"
    rows = [row for row in state.topology.sets if row.tags_of(full_name) is not None]
    return places_of(rows, url)


def _came_at(hop: Hop[MessageTrace]) -> str:
    """Return when a message came to a relay, or was stamped in the core, by its clock."""
    from weir.order.clock import milliseconds_of

    if hop.found is None or hop.found.presence not in ("stored", "skipped", "aborted"):
        return "-"
    seconds = hop.found.received
    if seconds is None:
        seconds = milliseconds_of(hop.found.stamp) / 1_000 if hop.found.stamp else None
    return "-" if seconds is None else _shown_time(seconds)


def _shown_time(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _tell(core: MessageTrace, hops: Sequence[Hop[MessageTrace]]) -> None:
    from weir.cli.output import print_table

    words = {
        "stored": "is stored",
        "aborted": "is no message: its scattering was aborted",
        "deleted": "is deleted: retention took it",
        "awaited": "is not there yet",
    }
    what = words.get(core.presence, core.presence)
    print(
        f"{core.topic}/{core.partition}/{core.offset} {what}; the partition holds offsets "
        f"{core.start:,} to {core.end:,}, the last one excluded"
    )
    print_table(("HOP", "MESSAGE", "CAME", "CLOCK", "HOLDS"), [_hop_cells(hop) for hop in hops])
    if core.clusters:
        print()
        print_table(
            ("CLUSTER", "PROGRESS", "ATTEMPTS", "WITH", "SECONDS LEFT"),
            [
                (one.cluster, one.progress, one.attempts, _holder(one), round(one.left_seconds, 1))
                for one in core.clusters
            ],
        )


def _hop_cells(hop: Hop[MessageTrace]) -> tuple[str, ...]:
    if hop.found is None:
        return hop.name, f"unknown: {hop.error}", "-", "-", "-"
    one = hop.found
    clock = f"{one.clock_ahead * 1_000:+,.0f} ms (±{one.clock_error * 1_000:,.0f})"
    return hop.name, one.presence, _came_at(hop), clock, f"{one.start:,} to {one.end:,}"


def _holder(one: Any) -> str | None:
    if not one.consumer:
        return None
    known = " ".join(part for part in (one.principal, one.address) if part)
    return f"{known} (connection {one.consumer:x})" if known else f"connection {one.consumer:x}"


def _hop_rows(hops: Sequence[Hop[MessageTrace]]) -> list[dict[str, Any]]:
    rows = []
    for hop in hops:
        row: dict[str, Any] = {"hop": hop.name, "url": hop.url, "error": hop.error or None}
        if (one := hop.found) is not None:
            row |= {
                "presence": one.presence, "start": one.start, "end": one.end,
                "received": one.received, "clock_ahead": one.clock_ahead,
                "clock_error": one.clock_error,
            }  # fmt: skip
        rows.append(row)
    return rows


def _cluster_rows(core: MessageTrace) -> list[dict[str, Any]]:
    return [
        {
            "cluster": one.cluster, "progress": one.progress, "attempts": one.attempts,
            "connection": f"{one.consumer:x}" if one.consumer else None,
            "principal": one.principal or None, "address": one.address or None,
            "left_seconds": one.left_seconds,
        }
        for one in core.clusters
    ]  # fmt: skip
