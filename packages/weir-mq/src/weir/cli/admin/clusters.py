"""`weir cluster`: list, lag, seek, pause, resume, delete, redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.app.dead_letters import Redriven
    from weir.client.administration import Cluster
    from weir.client.client import Client
    from weir.client.reader.options import Start

app = typer.Typer(name="cluster", help="Show how far consumer clusters are, and control them.")

Topic = Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")]
Name = Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def cluster(context: typer.Context) -> None:
    """Show how far consumer clusters are, and control them."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_clusters(topic: Topic, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the clusters of a topic and how far behind they are."""
    from weir.cli.output import hint, print_json, print_table

    async def work(client: Client) -> list[Cluster]:
        return await client.clusters(topic)

    clusters = connected(url, work)
    if as_json:
        found = {"topic": topic, "clusters": cluster_rows(clusters)}
        print_json("weir.clusters/1", {"url": url}, found)
    elif clusters:
        print_table(
            (
                "CLUSTER",
                "MODE",
                "LAG",
                "GRANTED",
                "HELD BACK",
                "DELAYED",
                "CONSUMERS",
                "OLDEST",
                "SKIPPED",
                "PAUSED",
                "TAGS",
                "PENDING",
            ),
            [(one.name, *_known(one), one.pending) for one in clusters],
        )
        if any(one.is_cut_off for one in clusters):
            print("the relay is cut off from its core, which knows all but the pending acks")
        hint(f"Next: weir cluster lag {topic} {clusters[0].name}")
    else:
        print(f"no cluster reads {topic} yet")
        hint(f"Next: weir cluster seek {topic} NAME --to latest --create")


@app.command()
def lag(topic: Topic, name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show how far a cluster is in each partition."""
    from weir.cli.output import print_json, print_table
    from weir.errors import UnknownCluster

    async def work(client: Client) -> list[Cluster]:
        return await client.clusters(topic, name)

    found = connected(url, work)
    if not found:
        raise UnknownCluster(f"no cluster {name!r} reads {topic}: `weir cluster list {topic}`")
    if as_json:
        print_json("weir.cluster/1", {"url": url}, {"topic": topic, **cluster_rows(found)[0]})
        return
    (one,) = found
    print_table(
        (
            "PARTITION",
            "CURSOR",
            "NEXT OFFSET",
            "LAG",
            "GRANTED",
            "HELD BACK",
            "DELAYED",
            "ATTEMPTS",
            "OLDEST",
            "SKIPPED",
        ),
        [
            (
                share.partition,
                share.cursor,
                share.end,
                share.lag,
                share.granted,
                share.held_back,
                share.delayed,
                share.attempts,
                _age(share),
                share.skipped,
            )
            for share in one.shares
        ],
    )
    print(_summary(one))


@app.command()
def seek(
    topic: Topic,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            help="`earliest`, `latest`, an offset (with --partition), `-1h`, `2026-11-22T10:00`."
        ),
    ],
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="Only in this partition; the others keep their positions."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the cluster if it does not exist.")
    ] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Move a cluster to another position. All current grants end."""
    from weir.cli.output import hint, print_json

    place = _place(to, partition)
    partitions = None if partition is None else [partition]

    async def work(client: Client) -> Cluster:
        return await client.seek_cluster(topic, name, place, partitions=partitions, create=create)

    found = connected(url, work)
    if as_json:
        settings = {"url": url, "to": to, "partition": partition, "create": create}
        print_json("weir.cluster/1", settings, {"topic": topic, **cluster_rows([found])[0]})
        return
    print(_summary(found))
    hint(f"Next: weir cluster lag {topic} {name}")


@app.command()
def pause(topic: Topic, name: Name, url: Url = DEFAULT_URL) -> None:
    """Pause a cluster: its consumers get no messages until it is resumed, but may still ack."""
    from weir.cli.output import hint

    async def work(client: Client) -> Cluster:
        return await client.pause_cluster(topic, name)

    print(_summary(connected(url, work)))
    hint(f"Next: weir cluster resume {topic} {name}")


@app.command()
def resume(topic: Topic, name: Name, url: Url = DEFAULT_URL) -> None:
    """Resume a paused cluster."""

    async def work(client: Client) -> Cluster:
        return await client.resume_cluster(topic, name)

    print(_summary(connected(url, work)))


@app.command()
def delete(
    topic: Topic,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete a cluster. A new one of the same name begins at the earliest message."""
    from weir.cli.output import typed

    if not yes:
        asked = f"cluster {name} will forget how far it is. Type its name to delete it"
        if not typed(asked, name):
            raise typer.Exit(1)

    async def work(client: Client) -> None:
        await client.delete_cluster(topic, name)

    connected(url, work)
    print(f"cluster {name} of {topic} is deleted")


@app.command()
def redrive(
    name: Annotated[
        str, typer.Argument(metavar="CLUSTER", help="The cluster whose handlers gave up on them.")
    ],
    topic: Annotated[str, typer.Option(help="The dead-letter topic, as `unlocks.dead`.")],
    to: Annotated[
        str | None, typer.Option(help="Publish them here. [default: the topic each came from]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish a cluster's dead letters again, once their cause is fixed.

    It takes all letters that are there now; the next redrive continues after them. Each is acked
    after its copy is confirmed, so when this is killed in between, a letter may be sent twice.
    """
    from weir.app.dead_letters import redrive as back
    from weir.cli.output import hint, print_json

    async def work(client: Client) -> Redriven:
        return await back(client, topic, name, to)

    done = connected(url, work)
    if as_json:
        settings = {"url": url, "cluster": name, "topic": topic, "to": to}
        found = {"messages": done.messages, "topics": dict(done.topics), "others": done.others}
        print_json("weir.redrive/1", settings, found)
        return
    if not done.topics:
        print(f"no dead letter of cluster {name} is left in {topic}")
    for place, count in sorted(done.topics.items()):
        print(f"{count:,} went back to {place}")
        hint(f"Next: weir cluster lag {place} {name}")
    if done.others:
        print(f"{done.others:,} are other clusters', and stay")


def cluster_rows(clusters: Sequence[Cluster]) -> list[dict[str, Any]]:
    """Return clusters as they stand in JSON: at a relay that is cut off, only what is pending."""
    from msgspec.structs import asdict

    return [
        {"name": one.name, "pending": one.pending, "cut_off": True}
        if one.is_cut_off
        else {
            "name": one.name,
            "mode": one.mode,
            "tags": list(one.tags),
            "lag": one.lag,
            "granted": one.granted,
            "held_back": one.held_back,
            "delayed": one.delayed,
            "consumers": one.consumers,
            "attempts": one.attempts,
            "oldest_seconds": one.oldest_seconds,
            "skipped": one.skipped,
            "paused": one.paused,
            "pending": one.pending,
            "cut_off": False,
            "partitions": [asdict(share) for share in one.shares],
        }
        for one in clusters
    ]


def _known(one: Cluster) -> Sequence[Any]:
    """Return what the core says of a cluster, in the order of the columns; nothing without it."""
    if one.is_cut_off:
        return (None,) * 10
    return (
        one.mode,
        one.lag,
        one.granted,
        one.held_back,
        one.delayed,
        one.consumers,
        _age(one),
        one.skipped,
        _paused(one),
        _tags(one),
    )


def _place(to: str, partition: int | None) -> Start:
    """Return what `--to` means."""
    from weir.client.reader.options import at

    if to.isdigit():
        if partition is None:
            raise typer.BadParameter("an offset needs --partition", param_hint="--to")
        return {partition: int(to)}
    return to if to in ("earliest", "latest") else at(to)


def _age(of: Any) -> str | None:
    from weir.cli.retention import duration_of

    return None if of.oldest_seconds is None else duration_of(of.oldest_seconds)


def _tags(one: Cluster) -> str:
    return ", ".join(tag or "(none)" for tag in one.tags) or "all"


def _paused(one: Cluster) -> bool | str:
    return "in part" if one.paused_in_part else one.paused


def _summary(one: Cluster) -> str:
    paused = f", paused{' in part' if one.paused_in_part else ''}" if one.paused else ""
    idle = ", and no consumer is at work" if one.granted and not one.consumers else ""
    return f"cluster {one.name}: {one.lag:,} not done, {one.granted:,} granted{idle}{paused}"
