"""`weir topology`: the BrokerSets of a system, their tiers, and what flows between them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.admin.devices import AsJson
from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.protocol.client.topology import TopologyState
    from weir.topology.checks import Problem
    from weir.topology.difference import Change
    from weir.topology.file import Found
    from weir.topology.sets import SetRow, Topology

app = typer.Typer(name="topology", help="Check, show and apply the tree of BrokerSets.")

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
        typer.Argument(show_default=False, help="A TOML file. [default: what is applied]"),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the tree that is applied, or that of a file: each set below the upper it prefers."""
    from weir.cli.output import print_json

    if file is not None:
        version, topology = None, _checked(file)
        settings = {"file": str(file)}
    else:
        state = connected(url, _describe)
        version, topology, settings = state.version, state.topology, {"url": url}
    if as_json:
        print_json("weir.topology/1", settings, {"version": version, **_row(topology)})
    elif topology.sets:
        for line in _drawn(topology):
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


def _drawn(topology: Topology) -> list[str]:
    """Return the lines of a topology that is checked: each set below the upper that it prefers."""
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
