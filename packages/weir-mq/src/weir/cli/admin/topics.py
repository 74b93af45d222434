"""`weir topic`: create, list, describe, stats, alter, end-partition, delete."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected
from weir.cli.retention import (
    Retention,
    RetentionBytes,
    UntilDone,
    clusters_named,
    kept_bytes,
    kept_seconds,
)

if TYPE_CHECKING:
    from weir.client.administration import Cluster, Held, Part
    from weir.client.client import Client
    from weir.protocol.client.messages import TopicInfo

app = typer.Typer(name="topic", help="Create, change, show and delete topics.")

Topic = Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")]
ScatterWith = Annotated[
    list[str] | None,
    typer.Option(
        help="A topic that a scattering may publish to together with this one, if that topic names "
        'this one, too; may be repeated; "" for none.'
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def topic(context: typer.Context) -> None:
    """Create, change, show and delete topics."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def create(
    name: Topic,
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions it has.")] = 1,
    order: Annotated[
        str,
        typer.Option(help="`partition`: each partition has an order; `total`: all have one."),
    ] = "partition",
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    until_done: UntilDone = None,
    scatter_with: ScatterWith = None,
    replicas: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="How many nodes hold it. [default: 3, as far as there are nodes]",
        ),
    ] = 0,
    key_by: Annotated[
        str,
        typer.Option(
            metavar="device",
            help="`device`: messages of devices have the number of their hub as their key, so that "
            "keyed clusters keep the order of each hub.",
        ),
    ] = "",
    if_absent: Annotated[
        bool,
        typer.Option(
            "--if-absent/--new", help="Accept an existing topic with the same settings, or fail."
        ),
    ] = True,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a topic. It keeps messages for 7 days by default."""
    from weir.cli.output import hint
    from weir.cli.retention import shown_retention
    from weir.model.topic import check_order

    age, size = kept_seconds(retention), kept_bytes(retention_bytes)
    clusters = clusters_named(until_done)

    async def work(client: Client) -> TopicInfo:
        return await client.create_topic(
            name,
            partitions,
            check_order(order),
            if_absent=if_absent,
            retention=age,
            retention_bytes=size,
            scatter_with=_together(scatter_with),
            until_done=clusters,
            replicas=replicas,
            key_by=key_by,
        )

    info = connected(url, work)
    print(f"topic {info.full_name} has {_partitions(info)}; kept: {shown_retention(info.settings)}")
    hint(f"Next: weir tail {name}, and in a second terminal: weir pub {name} hello")


@app.command("list")
def list_topics(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List all topics and how many messages they hold."""
    from weir.cli.output import hint, print_json, print_table
    from weir.cli.retention import shown_retention

    async def work(client: Client) -> list[Held]:
        return await client.held()

    topics = connected(url, work)
    if as_json:
        rows = [
            {
                **_settings(held.info),
                "partitions": [
                    dict(zip(("partition", "first_offset", "next_offset"), row, strict=True))
                    for row in _offsets(held)
                ],
            }
            for held in topics
        ]
        print_json("weir.topics/1", {"url": url}, {"topics": rows})
    elif topics:
        print_table(
            ("TOPIC", "PARTITIONS", "ORDER", "MESSAGES", "KEPT"),
            [
                (
                    held.info.full_name,
                    len(held.offsets),
                    held.info.order,
                    _messages(held),
                    shown_retention(held.info.settings),
                )
                for held in topics
            ],
        )
        hint("Next: weir topic describe TOPIC")
    else:
        print("no topics yet")
        hint("Next: weir topic create flights")


@app.command()
def describe(name: Topic, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show a topic: its settings, what each partition holds, and who consumes it."""
    from weir.cli.admin.clusters import cluster_rows
    from weir.cli.output import hint, print_json, print_table
    from weir.cli.retention import shown_retention

    async def work(client: Client) -> tuple[TopicInfo, list[Part], list[Cluster]]:
        info, parts = await client.describe(name), await client.parts(name)
        return info, parts, await client.clusters(name)

    info, parts, clusters = connected(url, work)
    if as_json:
        rows = [
            {
                "partition": part.partition,
                "first_offset": part.start,
                "next_offset": part.end,
                "bytes": part.bytes,
                "node": part.address.node,
                "shard": part.address.shard,
                "log": part.address.log,
                "nodes": part.nodes,
                "behind": part.behind,
                "state": _state(info, part.partition),
            }
            for part in parts
        ]
        found = {**_settings(info), "partitions": rows, "clusters": cluster_rows(clusters)}
        print_json("weir.topic/1", {"url": url}, {"topic": found})
        return
    print(f"topic {info.full_name}, id {info.id}, order={info.order}")
    print(f"kept: {shown_retention(info.settings)}")
    if info.key_by:
        print("messages of devices have the number of their hub as their key")
    if info.settings.scatter_with:
        print(f"scatters with: {', '.join(info.settings.scatter_with)}")
    print()
    several = any(part.address.node for part in parts)
    columns = ("PARTITION", "FIRST OFFSET", "NEXT OFFSET", "MESSAGES", "BYTES")
    print_table(
        (
            *columns,
            *(("STATE",) if info.ends else ()),
            *(("LED BY", "HELD BY") if several else ()),
            "SHARD",
            "LOG",
        ),
        [
            (
                part.partition,
                part.start,
                part.end,
                part.end - part.start,
                part.bytes,
                *((_state(info, part.partition),) if info.ends else ()),
                *((f"node {part.address.node}", _held_by(part)) if several else ()),
                part.address.shard,
                part.address.log,
            )
            for part in parts
        ],
    )
    print(f"\nclusters: {', '.join(cluster.name for cluster in clusters) or 'none'}")
    hint(f"Next: weir cluster list {name}")


@app.command()
def stats(name: Topic, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show how much each partition of a topic holds, and from when until when."""
    from datetime import UTC, datetime

    from weir.cli.output import print_json, print_table
    from weir.order.clock import milliseconds_of

    found = connected(url, lambda client: client.topic_stats(name))
    if as_json:
        rows = [
            {
                "partition": partition,
                "messages": one.messages,
                "bytes": one.bytes,
                "first_offset": one.start,
                "next_offset": one.end,
                "first_stamp": one.first_stamp,
                "last_stamp": one.last_stamp,
            }
            for partition, one in enumerate(found)
        ]
        print_json("weir.topic-stats/1", {"url": url}, {"partitions": rows})
        return

    def shown(stamp: int) -> str:
        when = datetime.fromtimestamp(milliseconds_of(stamp) / 1_000, UTC)
        return f"{when:%Y-%m-%d %H:%M:%S}" if stamp else "-"

    offsets = ("FIRST OFFSET", "NEXT OFFSET")
    print_table(
        ("PARTITION", "MESSAGES", "BYTES", *offsets, "FROM (UTC)", "TO (UTC)"),
        [
            (
                partition,
                one.messages,
                one.bytes,
                one.start,
                one.end,
                shown(one.first_stamp),
                shown(one.last_stamp),
            )
            for partition, one in enumerate(found)
        ],
    )


@app.command()
def alter(
    name: Topic,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="The new number of partitions; never fewer than now.")
    ] = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    until_done: UntilDone = None,
    scatter_with: ScatterWith = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Change a topic's retention, its scatter-with topics, or its number of partitions."""
    from weir.cli.retention import shown_retention

    together = _together(scatter_with)
    changes = (partitions, retention, retention_bytes, until_done, together)
    if all(change is None for change in changes):
        raise typer.BadParameter(
            "say what to change: --retention, --retention-bytes, --until-done, --partitions, "
            "--scatter-with"
        )
    age, size = kept_seconds(retention), kept_bytes(retention_bytes)
    clusters = clusters_named(until_done)

    async def work(client: Client) -> tuple[TopicInfo, TopicInfo]:
        before = await client.describe(name)
        after = await client.alter_topic(
            name,
            partitions=partitions,
            retention=age,
            retention_bytes=size,
            scatter_with=together,
            until_done=clusters,
        )
        return before, after

    before, info = connected(url, work)
    print(f"topic {info.full_name} has {_partitions(info)}; kept: {shown_retention(info.settings)}")
    if len(info.addresses) > len(before.addresses):
        print(
            "keys fall into other partitions from now on: messages of one key that were published "
            "before and after this have no order among them. Readers, consumers and producers "
            "that run notice the new partitions within seconds.",
            file=sys.stderr,
        )


@app.command("end-partition")
def end_partition(
    name: Topic,
    partition: Annotated[int, typer.Argument(min=0, help="Its number; 0 never ends.")],
    url: Url = DEFAULT_URL,
) -> None:
    """End a partition for good: it takes no more messages, and stays readable to its end."""

    async def work(client: Client) -> TopicInfo:
        return await client.end_partition(name, partition)

    info = connected(url, work)
    left = len(info.addresses) - len(info.ends)
    print(
        f"partition {partition} of {info.full_name} has ended; {left} "
        f"take{'s' if left == 1 else ''} messages"
    )
    print(
        "its keys fall into other partitions from now on: messages of one of them that were "
        "published before and after this have no order among them. All other keys stay.",
        file=sys.stderr,
    )


@app.command()
def delete(
    name: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete a topic and all its messages, for good."""
    from weir.cli.output import typed

    async def look(client: Client) -> list[int]:
        starts, ends = await client.positions(name)
        return [end - start for start, end in zip(starts, ends, strict=True)]

    async def work(client: Client) -> None:
        await client.delete_topic(name)

    count = sum(connected(url, look))
    messages = f"{count:,} message{'s' if count != 1 else ''}"
    if not yes:
        asked = f"{messages} of {name} will be gone for good. Type the name to delete it"
        if not typed(asked, name):
            raise typer.Exit(1)
    connected(url, work)
    print(f"topic {name} is deleted; it held {messages}")


def _offsets(held: Held) -> list[tuple[int, int | None, int | None]]:
    """Return partition, first offset and next offset; None for those that are not known."""
    return [(number, *(row or (None, None))) for number, row in enumerate(held.offsets)]


def _messages(held: Held) -> int | str:
    """Return how many messages a topic holds, as far as its partitions answer."""
    known = [row for row in held.offsets if row is not None]
    count, silent = sum(end - start for start, end in known), len(held.offsets) - len(known)
    return f"{count} ({silent} of {len(held.offsets)} partitions silent)" if silent else count


async def create_bad_topic(client: Client, topic: str) -> str:
    """Create the topic for values of `topic` that do not parse, unless it is there: of one
    partition, with the retention and the replicas of `topic`. Return its name, or "" for a topic
    that is such a one itself.
    """
    from weir.errors import UnknownTopic
    from weir.model.topic import BAD, FOREVER

    if topic.endswith(BAD):
        return ""
    bad = topic + BAD
    try:
        await client.describe(bad)
    except UnknownTopic:
        info, parts = await client.describe(topic), await client.parts(topic)
        kept, size = info.settings.retention_ms, info.settings.retention_bytes
        await client.create_topic(
            bad,
            retention="forever" if kept == FOREVER else kept / 1_000,
            retention_bytes="forever" if size == FOREVER else size,
            replicas=len(parts[0].nodes),
        )
    return bad


def _together(names: list[str] | None) -> list[str] | None:
    """Return what to scatter with; None if it is to stay as it is."""
    return [name for name in names if name] if names else None


def _held_by(part: Part) -> str:
    if not part.behind:
        return _listed(part.nodes)
    nodes = "nodes" if len(part.behind) > 1 else "node"
    are = "are" if len(part.behind) > 1 else "is"
    return f"{_listed(part.nodes)} ({nodes} {_listed(part.behind)} {are} behind)"


def _state(info: TopicInfo, partition: int) -> str:
    end = dict(info.ends).get(partition)
    return "open" if end is None else "ended" if end else "ending"


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))


def _partitions(info: TopicInfo) -> str:
    count = len(info.addresses)
    return f"{count} partition{'s' if count > 1 else ''}"


def _settings(info: TopicInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "name": info.full_name,
        "order": info.order,
        "retention_ms": info.settings.retention_ms,
        "retention_bytes": info.settings.retention_bytes,
        "scatter_with": info.settings.scatter_with,
        "until_done": info.settings.until_done,
        "key_by": info.key_by,
    }
