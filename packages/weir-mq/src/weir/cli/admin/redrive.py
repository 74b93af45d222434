"""`weir cluster redrive`: dead letters go back to where they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.app.dead_letters import Redriven
    from weir.client.client import Client


def redrive(
    name: Annotated[str, typer.Argument(metavar="CLUSTER", help="Whose handlers buried them.")],
    topic: Annotated[str, typer.Option(help="The dead-letter topic, as `unlocks.dead`.")],
    to: Annotated[
        str | None, typer.Option(help="Publish them here. [default: the topic each came from]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish a cluster's dead letters again, once the cause is mended.

    All that are there now; the next redrive goes on behind them. Each is acked after its copy is
    confirmed: killed in between, this leaves one that goes back twice.
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
