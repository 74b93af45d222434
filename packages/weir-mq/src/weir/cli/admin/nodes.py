"""`weir node`: the nodes of a set, and what lies on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.nodes import SetStatus
    from weir.protocol.client.nodes import NodeList, SetInfo, SetList, Transferred
    from weir.topology.sets import Topology

app = typer.Typer(name="node", help="Show, add, drain and remove the nodes of a set.")

Node = Annotated[int, typer.Argument(min=1, help="The number of the node.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def node(context: typer.Context) -> None:
    """Show, add, drain and remove the nodes of a set."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def status(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show every node: whether it answers, what it leads and holds, and what lags behind.

    Exit code 1 if a node is down, a group has no leader, or a replica is not up to date.
    """
    from msgspec.structs import asdict

    from weir.cli.output import print_json, print_table

    async def work(client: Client) -> tuple[SetStatus, SetList | None]:
        return await client.nodes.status(), await _sets(client)

    found, sets = connected(url, work)
    of = {node: one for one in sets.sets for node in one.nodes} if sets is not None else {}
    if as_json:
        rows: dict[str, Any] = {
            "system": f"{found.system:x}",
            "level": found.level,
            "logs": found.logs,
            "asked": found.asked,
            "settled": found.settled,
            "nodes": [
                {**asdict(one), "brokerset": of[one.id].id if one.id in of else None}
                for one in found.nodes
            ],
            "sets": None if sets is None else [_set_row(one) for one in sets.sets],
            "rule": None if sets is None else sets.rule,
        }
        print_json("weir.nodes/1", {"url": url}, rows)
    else:
        print_table(
            ("NODE", "SET", "ADDRESS", "STATE", "LEADS", "WANTED", "HOLDS", "WANTED", "LAGGING",
             "MOVING", "LEVEL"),
            [
                (
                    one.id,
                    _label(of.get(one.id)),
                    f"{one.host}:{one.port}" if one.port else "-",
                    one.state if one.up else f"{one.state}, down",
                    one.led,
                    one.leaders,
                    one.held,
                    one.replicas,
                    one.lagging,
                    one.moving,
                    one.level,
                )
                for one in found.nodes
            ],
        )  # fmt: skip
        print(_words(found))
    if not found.settled:
        raise typer.Exit(1)


@app.command()
def add(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where it will listen.")],
    number: Annotated[
        int,
        typer.Option(
            "--node", min=0, show_default=False, help="Its number. [default: the next free one]"
        ),
    ] = 0,
    brokerset: Annotated[
        str,
        typer.Option(
            show_default=False, help="Its BrokerSet, by name or id. [default: as the topology says]"
        ),
    ] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Register a new node, and print how to create it. Groups move to it once it runs.

    With --node of a node that runs, set the address where others reach it. Numbers are never used
    again, not even those of removed nodes. The command has a secret by which the node comes in, for
    its first link alone: the last one that was printed for a node counts.
    """
    import secrets

    from weir.model.limits import FORMAT_LEVEL_TOPOLOGY, JOIN_SECRET_BYTES, SET_ID_MAX
    from weir.server.config import split_address

    if brokerset.isdecimal() and int(brokerset) > SET_ID_MAX:
        raise typer.BadParameter(f"ids of sets end at {SET_ID_MAX:,}", param_hint="--brokerset")
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise typer.BadParameter(f"the address {error}", param_hint="HOST:PORT") from None

    secret = secrets.token_bytes(JOIN_SECRET_BYTES)

    async def work(client: Client) -> tuple[NodeList, Topology]:
        topology = await _topology(client)
        if brokerset and not brokerset.isdecimal() and topology.by_name(brokerset) is None:
            raise typer.BadParameter(
                f"the topology has no set {brokerset!r}: give its id, or apply one that has it",
                param_hint="--brokerset",
            )
        level = (await client.nodes.list()).level
        has_keys = level >= FORMAT_LEVEL_TOPOLOGY
        added = client.nodes.add(host, port, number, join_secret=secret if has_keys else b"")
        return await added, topology

    listed, topology = connected(url, work)
    join = f"--join {secret.hex()} " if listed.level >= FORMAT_LEVEL_TOPOLOGY else ""
    new = next(one for one in listed.nodes if (one.host, one.port) == (host, port))
    if new.shards:  # it has run: founding it again would lose its data
        print(f"node {new.id} is reached at {host}:{port} from now on")
        return
    others = ",".join(f"{one.id}={one.host}:{one.port}" for one in listed.nodes if one.id != new.id)
    found = _set_of(new.id, brokerset, topology)
    print(
        f"node {new.id} is registered. On its machine:\n"
        f"  weir init --node {new.id} --set {others} --system {listed.system:x} "
        f"--logs {listed.logs} {f'--brokerset {found} ' if found else ''}{join}--data FOLDER\n"
        f"  weir serve --host {host} --port {port} --data FOLDER"
    )


async def _topology(client: Client) -> Topology:
    """Return the topology that is applied; an empty one of a system that can have none."""
    from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
    from weir.topology.sets import Topology

    if (await client.nodes.list()).level < FORMAT_LEVEL_TOPOLOGY:
        return Topology()
    return (await client.topology.describe()).topology


def _set_of(node: int, brokerset: str, topology: Topology) -> int:
    """Return the id of the set that a new node is to be of: what was asked for, by name or by id,
    or what the topology says.
    """
    if brokerset.isdecimal():
        return int(brokerset)
    named = topology.by_name(brokerset)
    return named.id if named is not None else topology.core_nodes().get(node, 0)


@app.command()
def drain(
    number: Node,
    wait: Annotated[
        str,
        typer.Option(
            help="Wait at most this long until the node is empty, as in `5m`; 0s: do not wait."
        ),
    ] = "5m",
    url: Url = DEFAULT_URL,
) -> None:
    """Move leaders, then replicas, from a node to others. The node keeps serving meanwhile."""
    from weir.cli.output import hint
    from weir.cli.retention import duration

    most = duration("--wait", wait)

    async def work(client: Client) -> None:
        await client.nodes.drain(number)
        if most:
            await client.nodes.drained(number, most)

    connected(url, work)
    if most:
        print(f"node {number} holds nothing any more")
        hint(f"Next: weir node remove {number}; or, to use it again: weir node activate {number}")
    else:
        print(f"node {number} is being drained: `weir node status` shows how far it is")


@app.command()
def activate(number: Node, url: Url = DEFAULT_URL) -> None:
    """Let a drained node get groups again."""

    async def work(client: Client) -> NodeList:
        return await client.nodes.activate(number)

    connected(url, work)
    print(f"node {number} is active")


@app.command()
def remove(number: Node, url: Url = DEFAULT_URL) -> None:
    """Remove a node from the set for good. Drain it first: a node that is needed is not removed.

    Then stop its process, and delete its folder. Its number is never used again.
    """
    from weir.cli.output import hint

    async def work(client: Client) -> NodeList:
        return await client.nodes.remove(number)

    left = connected(url, work).nodes
    print(f"node {number} is no part of the set any more: end its process, delete its folder")
    if len(left) == 2:
        hint(
            "Two nodes are left: with either of them down nothing is confirmed. "
            "`weir node add HOST:PORT` adds a third."
        )


@app.command("transfer-leader")
def transfer_leader(
    topic: Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")],
    partition: Annotated[int, typer.Option(min=0, help="Which of its partitions.")] = 0,
    to: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="The node to lead it. [default: the one it is meant for]",
        ),
    ] = 0,
    url: Url = DEFAULT_URL,
) -> None:
    """Let another node lead a partition. Later the leadership returns to the preferred node."""

    async def work(client: Client) -> Transferred:
        return await client.nodes.transfer(topic, partition, to)

    print(f"node {connected(url, work).node} leads partition {partition} of {topic} now")


@app.command("raise-level")
def raise_level(
    level: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="The level. [default: the highest that all nodes support]",
        ),
    ] = 0,
    url: Url = DEFAULT_URL,
) -> None:
    """Let all nodes write a newer format, once each runs a release that reads it. This is final."""

    async def work(client: Client) -> NodeList:
        return await client.nodes.raise_level(level)

    print(f"format level {connected(url, work).level} is written")


async def _sets(client: Client) -> SetList | None:
    """Return the BrokerSets; None of a system that is below the format level of sets."""
    from weir.model.limits import FORMAT_LEVEL_TOPOLOGY

    if (await client.nodes.list()).level < FORMAT_LEVEL_TOPOLOGY:
        return None
    return await client.nodes.sets()


def _set_row(one: SetInfo) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name or None,
        "tier": one.tier,
        "nodes": one.nodes,
        "majorities": one.majorities,
        "has_registry": one.has_registry,
    }


def _label(one: SetInfo | None) -> str:
    return "-" if one is None else one.name or f"{one.id}"


def _words(found: SetStatus) -> str:
    down = [str(one.id) for one in found.nodes if not one.up]
    leaderless = max((one.leaderless for one in found.nodes), default=0)
    parts = [f"system {found.system:x}, format level {found.level}"]
    if down:
        parts.append(f"down: node {', '.join(down)}")
    if leaderless:
        parts.append(f"{leaderless} groups have no leader")
    return "; ".join(parts)
