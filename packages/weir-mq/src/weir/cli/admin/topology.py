"""`weir topology`: the BrokerSets of a system, their tiers, and what flows between them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.admin.devices import AsJson
from weir.cli.admin.hops import Hop, ask_relays, places_of
from weir.cli.admin.promotion import promote
from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.protocol.client.relays import RelayInfo, RelayTopic
    from weir.protocol.client.topology import TopologyState
    from weir.topology.checks import Problem
    from weir.topology.difference import Change
    from weir.topology.file import Found
    from weir.topology.sets import SetRow, Topology

app = typer.Typer(name="topology", help="Check, show and apply the tree of BrokerSets.")
app.command()(promote)

File = Annotated[Path, typer.Argument(help="A TOML file of sets.")]


@app.callback(invoke_without_command=True)
def topology(context: typer.Context) -> None:
    """Check, show and apply the tree of BrokerSets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def check(file: File, as_json: AsJson = False) -> None:
    """Check a file; print one line per problem, and each set whose loss stops others.

    Exit code 1 if there is a problem; losses that are not survived are warnings.
    """
    from weir.cli.output import hint, print_json
    from weir.topology.checks import losses

    found = _read(file)
    warnings = losses(found.topology) if found.topology and not found.problems else []
    if as_json:
        rows = [_problem(found, one) for one in (*found.problems, *warnings)]
        results = {"fine": not found.problems, "problems": rows}
        print_json("weir.topology-check/1", {"file": str(file)}, results)
    else:
        for line in _told(file, found, warnings):
            print(line)
        _tell_problems(file, found)
    if found.problems:
        raise typer.Exit(1)
    if not as_json:
        print(f"{file}: fine")
        hint(f"Next: weir topology apply {file}")


@app.command()
def show(
    file: Annotated[
        Path | None,
        typer.Argument(show_default=False, help="A TOML file. [default: the applied topology]"),
    ] = None,
    lag: Annotated[
        bool, typer.Option("--lag/--no-lag", help="Ask each relay how far it is; not with a file.")
    ] = True,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the tree that is applied, or that of a file: each set below the upper it prefers.

    Of the tree that is applied, it shows how far each relay is. This takes 15 seconds at most.
    """
    from weir.cli.output import print_json

    hops: list[Hop[RelayInfo]] | None = None

    if file is not None:
        version, topology = None, _checked(file)
        settings = {"file": str(file)}
    else:
        state, hops = connected(url, lambda client: _looked(client, url, lag=lag))
        version, topology, settings = state.version, state.topology, {"url": url}
    if as_json:
        relays = None if hops is None else [_relay(one) for one in hops]
        found = {"version": version, **_row(topology), "relays": relays}
        print_json("weir.topology/1", settings, found)
    elif topology.sets:
        for line in _drawn(topology, hops or ()):
            print(line)
    else:
        print("no topology is applied: all nodes are one core set")


@app.command()
def apply(
    file: File,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the difference, and change nothing.")
    ] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print what changes from the topology that is applied to that of a file, and apply it.

    Exit code 1 if somebody else applied another one meanwhile: nothing is changed then.
    """
    from weir.cli.output import print_json
    from weir.topology.difference import difference

    topology = _checked(file)

    async def work(client: Client) -> tuple[int, list[Change]]:
        state = await _describe(client)
        changes = difference(state.topology, topology)
        if not as_json:
            for one in changes:
                print(one)
        if changes and not dry_run:
            state = await client.topology.apply(topology, state.version)
        return state.version, changes

    version, changes = connected(url, work)
    if as_json:
        rows = [one._asdict() for one in changes]
        results = {"version": version, "applied": bool(changes) and not dry_run, "changes": rows}
        print_json("weir.topology-apply/1", {"file": str(file), "url": url}, results)
    elif not changes:
        print(f"{file}: nothing changes, version {version} is applied")
    elif dry_run:
        print(f"nothing was changed: version {version} is applied still")
    else:
        print(f"version {version} is applied")


async def _describe(client: Client) -> TopologyState:
    return await client.topology.describe()


async def _looked(
    client: Client, url: str, *, lag: bool
) -> tuple[TopologyState, list[Hop[RelayInfo]] | None]:
    state = await _describe(client)
    return state, await ask_lag(state.topology, url) if lag else None


async def ask_lag(topology: Topology, url: str) -> list[Hop[RelayInfo]]:
    """Ask each relay of a topology how far it is, by its name SET/NODE."""
    hops = await ask_relays(
        places_of(topology.sets, url), lambda client: client.topology.describe_relay()
    )
    nodes = [(row.id, n.number) for row in topology.sets if row.tier != "core" for n in row.nodes]
    return [_checked_node(hop, *who) for hop, who in zip(hops, nodes, strict=True)]


def _checked_node(hop: Hop[RelayInfo], brokerset: int, node: int) -> Hop[RelayInfo]:
    """Return what a relay said, or that another one answers at its address."""
    one = hop.found
    if one is None or (one.brokerset, one.node) == (brokerset, node):
        return hop
    error = f"node {one.node} of the set with id {one.brokerset} answers at its address"
    return Hop(hop.name, hop.url, None, error)


def _read(file: Path) -> Found:
    from weir.topology.file import read

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is no UTF-8: {error}") from None
    return read(text)


def _checked(file: Path) -> Topology:
    """Return what a file says. Exits with 1 if something is wrong with it."""
    found = _read(file)
    if found.topology is None or found.problems:
        _tell_problems(file, found)
        raise typer.Exit(1)
    return found.topology


def _tell_problems(file: Path, found: Found) -> None:
    for line in _told(file, found, found.problems):
        print(line, file=sys.stderr)


def _told(file: Path, found: Found, problems: tuple[Problem, ...] | list[Problem]) -> list[str]:
    told = []
    for one in problems:
        line, name = found.lines.of(one), _name(found, one)
        where = f"{file}:{line}" if line else f"{file}"
        whose = f"set {name}: " if name else ""
        told.append(f"{where}: {'warning: ' if one.is_warning else ''}{whose}{one.text}")
    return told


def _name(found: Found, problem: Problem) -> str:
    if found.topology is None or problem.at < 0:
        return ""
    return found.topology.sets[problem.at].name


def _problem(found: Found, problem: Problem) -> dict[str, Any]:
    return {
        "line": found.lines.of(problem) or None,
        "set": _name(found, problem) or None,
        "text": problem.text,
        "warning": problem.is_warning,
    }


def _drawn(topology: Topology, hops: Sequence[Hop[RelayInfo]]) -> list[str]:
    """Return the lines of a topology that is checked: each set below the upper that it prefers, and
    how far its relays are.
    """
    said: dict[str, list[str]] = {}
    for hop in hops:
        name, _, number = hop.name.rpartition("/")
        said.setdefault(name, []).append(f"- node {number}: {_lag_words(hop)}")
    below: dict[int, list[SetRow]] = {}
    for one in topology.sets:
        if one.upper:
            below.setdefault(one.upper[0], []).append(one)
    found: list[str] = []
    # Depth first, by hand: a tree may be as deep as there are levels. The last one is next.
    left = [("", one) for one in reversed(topology.core())]
    while left:
        indent, one = left.pop()
        found.append(f"{indent}{' '.join(_words_of(topology, one))}")
        found += [f"{indent}  {words}" for words in said.get(one.name, ())]
        left += [(f"{indent}  ", child) for child in reversed(below.get(one.id, ()))]
    return found


def _words_of(topology: Topology, one: SetRow) -> Iterator[str]:
    from weir.topology.sets import name_of

    yield f"{one.name} [{one.id}]"
    is_home = one.id == topology.home and one.tier == "core"
    yield f"{one.tier} {one.level}" if one.level else "core, home" if is_home else one.tier
    if where := "/".join(filter(None, (one.region, one.carrier))):
        yield where
    numbers = ", ".join(f"{node.number}" for node in one.nodes)
    yield f"{'node' if len(one.nodes) == 1 else 'nodes'} {numbers}"
    if others := ", ".join(name_of(topology, id) for id in one.upper[1:]):
        yield f"or below {others}"
    if one.tags is not None:
        tags = (
            f"{row.topic}:{'*' if row.tags is None else ','.join(t or '-' for t in row.tags)}"
            for row in one.tags
        )
        yield f"holds {' '.join(tags) or 'nothing'}"


def _lag_words(hop: Hop[RelayInfo]) -> str:
    """Say how far a relay is, with all its topics together."""
    one = hop.found
    if one is None:
        return f"unknown: {hop.error}"
    topics = one.topics
    messages, size = sum(t.lag_messages for t in topics), sum(t.lag_bytes for t in topics)
    words = [f"{messages:,} messages behind"]
    if messages:
        words[0] += f" (about {size:,} bytes)"
    if topics:
        words.append(f"complete {max(t.lag_ms for t in topics) / 1_000:,.1f} s ago")
    if (mark := max((t.mark_ms for t in topics), default=-1)) >= 0:
        words.append(f"marks {mark / 1_000:,.1f} s old")
    if holds := sum(t.holds for t in topics):
        oldest = max(t.hold_ms for t in topics) / 1_000
        words.append(f"{holds:,} holds for relays below, the oldest said {oldest:,.1f} s ago")
    if barred := sum(bool(t.barred) for t in topics):
        words.append(f"{barred:,} topics that the core refuses")
    if not one.reached:
        words.insert(0, "cut off from the core")
    return ", ".join(words)


def _relay(hop: Hop[RelayInfo]) -> dict[str, Any]:
    name, _, number = hop.name.rpartition("/")
    row: dict[str, Any] = {
        "set": name, "node": int(number), "url": hop.url, "error": hop.error or None,
    }  # fmt: skip
    if (one := hop.found) is not None:
        row |= {
            "reached": one.reached,
            "pulled_bytes": dict(one.pulled),
            "sent_bytes": [{"id": id, "node": node, "bytes": size} for id, node, size in one.sent],
            "topics": [_topic(topic) for topic in one.topics],
        }
    return row


def _topic(one: RelayTopic) -> dict[str, Any]:
    return {
        "topic": one.name,
        "barred": one.barred or None,
        "partitions": one.partitions,
        "lag_messages": one.lag_messages,
        "lag_bytes": one.lag_bytes,
        "lag_seconds": one.lag_ms / 1_000,
        "news_age_seconds": one.news_ms / 1_000,
        "held_bytes": one.held_bytes,
        "lost_messages": one.lost,
        "filter_tags": None if one.tags < 0 else one.tags,
        "mark_age_seconds": None if one.mark_ms < 0 else one.mark_ms / 1_000,
        "holds": one.holds,
        "hold_messages": one.hold_messages,
        "hold_age_seconds": one.hold_ms / 1_000,
    }


def _row(topology: Topology) -> dict[str, Any]:
    from weir.topology.difference import home_of

    return {"home": home_of(topology), "sets": [_set(topology, one) for one in topology.sets]}


def _set(topology: Topology, one: SetRow) -> dict[str, Any]:
    from weir.topology.sets import name_of

    tags = one.tags
    return {
        "id": one.id,
        "name": one.name,
        "tier": one.tier,
        "level": one.level,
        "region": one.region or None,
        "carrier": one.carrier or None,
        "nodes": [{"node": n.number, "host": n.host, "port": n.port} for n in one.nodes],
        "upper": [name_of(topology, id) for id in one.upper],
        "tags": None if tags is None else {row.topic: row.tags for row in tags},
        "caps": {
            "hold_bytes": one.caps.hold_bytes,
            "hold_seconds": one.caps.hold_seconds,
            "disk_bytes": one.caps.disk_bytes,
        },
    }
