"""`weir sink`: list, forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.protocol.client.sinks import Sink

app = typer.Typer(name="sink", help="Show which queries write to topics, and forget them.")

Topic = Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def sink(context: typer.Context) -> None:
    """Show which queries write to topics, and forget them."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_sinks(topic: Topic, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the queries that have published to a topic, and the last batch of each."""
    from weir.cli.output import hint, print_json, print_table

    async def work(client: Client) -> list[Sink]:
        return await client.sinks(topic)

    found = connected(url, work)
    if as_json:
        sinks = [
            {
                "query": one.query,
                "batch": one.batch_id,
                "stamp": one.stamp,
                "published_ms": _published_ms(one),
            }
            for one in found
        ]
        print_json("weir.sinks/1", {"url": url, "topic": topic}, {"sinks": sinks})
    elif found:
        print_table(
            ("QUERY", "LAST BATCH", "PUBLISHED"),
            [(one.query, one.batch_id, _time(_published_ms(one))) for one in found],
        )
        hint(f"Forget a query that will not come back: weir sink forget {topic} QUERY")
    else:
        print(f"no query has published to {topic}")


@app.command()
def forget(
    topic: Topic,
    query: Annotated[str, typer.Argument(help="The query's name, as `weir sink list` shows it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Forget what a query has published to a topic. Should it come back, it begins anew, and what
    it publishes again is there twice.
    """
    from weir.cli.output import print_json, typed

    asked = f"batches that query {query} publishes again are doubled. Type its name to forget it"
    if not yes and not typed(asked, query):
        raise typer.Exit(1)

    async def work(client: Client) -> bool:
        return await client.forget_sink(topic, query)

    was_known = connected(url, work)
    if as_json:
        told = {"query": query, "was_known": was_known}
        print_json("weir.sink-forgotten/1", {"url": url, "topic": topic}, told)
    elif was_known:
        print(f"query {query} is forgotten in {topic}")
    else:
        print(f"query {query} has published nothing to {topic}: see `weir sink list {topic}`")


def _published_ms(one: Sink) -> int:
    from weir.order.clock import milliseconds_of

    return milliseconds_of(one.stamp)


def _time(ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
