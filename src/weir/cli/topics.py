"""`weir topic`: create and list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connecting import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.wire.messages import TopicInfo

app = typer.Typer(name="topic", help="Create topics, and list them.")


@app.callback(invoke_without_command=True)
def topic(context: typer.Context) -> None:
    """Create topics, and list them."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")],
    partitions: Annotated[int, typer.Option(help="How many partitions it has, for good.")] = 1,
    order: Annotated[str, typer.Option(help="What has one order: `partition`.")] = "partition",
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Be content with one that is the same already.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a topic."""
    from weir.cli.output import hint

    async def work(client: Client) -> TopicInfo:
        return await client.create_topic(name, partitions, order, if_absent)

    info = connected(url, work)
    count = len(info.addresses)
    print(f"topic {_full_name(info)} has {count} partition{'s' if count > 1 else ''}")
    hint(f"Next: weir tail {name}, and in a second terminal: weir pub {name} hello")


@app.command("list")
def list_topics(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List all topics and how many messages they hold."""
    from weir.cli.output import hint, print_json, print_table

    async def work(client: Client) -> list[tuple[TopicInfo, list[int], list[int]]]:
        return [
            (info, *await client.positions(f"{info.namespace}/{info.name}"))
            for info in await client.topics()
        ]

    topics = connected(url, work)
    if as_json:
        rows = [
            {
                "id": info.id,
                "name": _full_name(info),
                "order": info.order,
                "partitions": [
                    {"partition": partition, "first_offset": first, "next_offset": behind}
                    for partition, (first, behind) in enumerate(zip(starts, ends, strict=True))
                ],
            }
            for info, starts, ends in topics
        ]
        print_json("weir.topics/1", {"url": url}, {"topics": rows})
    elif topics:
        print_table(
            ("TOPIC", "PARTITIONS", "ORDER", "MESSAGES"),
            [
                (_full_name(info), len(starts), info.order, sum(ends) - sum(starts))
                for info, starts, ends in topics
            ],
        )
    else:
        print("no topics yet")
        hint("Next: weir topic create flights")


def _full_name(info: TopicInfo) -> str:
    from weir.model.topic import DEFAULT_NAMESPACE

    return info.name if info.namespace == DEFAULT_NAMESPACE else f"{info.namespace}/{info.name}"
