"""`weir fleet`: fleets of devices and their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.admin.devices import AsJson, KeyFile, Version, fleet_key, hub_number
from weir.cli.connection import DEFAULT_URL, Url, changed, connected

if TYPE_CHECKING:
    from weir.client.access import Fleet
    from weir.client.client import Client

app = typer.Typer(name="fleet", help="Manage fleets: hubs that prove their identity by a key.")

Name = Annotated[str, typer.Argument(help="The fleet's name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.callback(invoke_without_command=True)
def fleet(context: typer.Context) -> None:
    """Manage fleets: hubs that prove their identity by a key."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def create(
    name: Name,
    first: Annotated[str, typer.Argument(help="The first hub: 2583 or 0xa17.")],
    last: Annotated[str, typer.Argument(help="The last hub.")],
    key: KeyFile,
    signed: Annotated[bool, typer.Option("--signed", help="They sign all frames as well.")] = False,
    tag: Annotated[str, typer.Option("--tag", help="Of all messages of its devices.")] = "",
    version: Version = 1,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Let the hubs FIRST to LAST be a fleet, or change it. A key file that is not there is made."""
    from weir.access.devices import Level

    level = Level.SIGNED if signed else Level.PROOF
    bounds, secret = (hub_number(first), hub_number(last)), fleet_key(key, make=True)

    async def work(client: Client) -> Fleet:
        return await client.fleets.put(name, *bounds, level, version, secret, tag)

    _tell("weir.fleet/1", url, changed(url, work), as_json)


@app.command("list")
def list_fleets(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List all fleets, in the order of their hubs."""
    from weir.cli.output import print_json, print_table

    async def work(client: Client) -> tuple[Fleet, ...]:
        return await client.fleets.list()

    found = connected(url, work)
    if as_json:
        print_json("weir.fleets/1", {"url": url}, {"fleets": [_row(one) for one in found]})
    elif found:
        rows = [
            (one.name, one.first, one.last, one.level.name.lower(), _versions(one)) for one in found
        ]
        print_table(("FLEET", "FIRST", "LAST", "LEVEL", "KEY VERSIONS"), rows)
    else:
        print("there are no fleets: hubs connect without a proof")


@app.command()
def rotate(
    name: Name,
    key: KeyFile,
    version: Version,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Add a version of a fleet's key; devices with secrets of the versions before come in as well,
    until `weir fleet drop-key`. A key file that is not there is made.
    """
    secret = fleet_key(key, make=True)

    async def work(client: Client) -> Fleet:
        known = await _named(client, name)
        return await client.fleets.put(
            name, known.first, known.last, known.level, version, secret, known.tag
        )

    _tell("weir.fleet/1", url, changed(url, work), as_json)


@app.command("drop-key")
def drop_key(
    name: Name,
    version: Annotated[int, typer.Argument(min=1, max=255, help="Of the fleet's key.")],
    yes: Yes = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Take a version of a fleet's key away: devices whose secrets were made by it stay out."""
    from weir.cli.output import typed

    asked = f"devices with secrets of version {version} stay out. Type the fleet's name to go on"
    if not yes and not typed(asked, name):
        raise typer.Exit(1)

    async def work(client: Client) -> Fleet:
        return await client.fleets.drop_key(name, version)

    _tell("weir.fleet/1", url, changed(url, work), as_json)


@app.command()
def remove(name: Name, yes: Yes = False, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Remove a fleet. In an open set anybody may come as its hubs then."""
    from weir.cli.output import typed

    asked = f"the hubs of fleet {name} may then connect without a proof. Type its name to remove it"
    if not yes and not typed(asked, name):
        raise typer.Exit(1)

    async def work(client: Client) -> Fleet:
        return await client.fleets.remove(name)

    _tell("weir.fleet/1", url, changed(url, work), as_json, "removed: ")


async def _named(client: Client, name: str) -> Fleet:
    from weir.errors import BadRequest

    for one in await client.fleets.list():
        if one.name == name:
            return one
    raise BadRequest(f"there is no fleet {name!r}: `weir fleet list` shows them")


def _tell(schema: str, url: str, found: Fleet, as_json: bool, word: str = "") -> None:
    from weir.cli.output import print_json

    if as_json:
        print_json(schema, {"url": url}, _row(found))
    else:
        print(
            f"{word}fleet {found.name}: hubs {found.first} to {found.last}, level "
            f"{found.level.name.lower()}, key versions {_versions(found)}"
        )


def _row(found: Fleet) -> dict[str, Any]:
    return {
        "fleet": found.name,
        "first": found.first,
        "last": found.last,
        "level": found.level.name.lower(),
        "versions": list(found.versions),
        "tag": found.tag,
    }


def _versions(found: Fleet) -> str:
    return ", ".join(map(str, found.versions))
