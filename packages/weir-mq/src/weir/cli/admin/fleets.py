"""`weir fleet`: fleets of devices and their keys; and `weir device enrol|replace|revoke|status`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.access.verbs import access_app, change
from weir.cli.admin.devices import AsJson, HubNumber, hub_number
from weir.cli.admin.devices import app as device_app
from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.access import AccessChange, Fleet, FleetDevice
    from weir.client.client import Client

app = typer.Typer(name="fleet", help="Let hubs prove who they are, by fleets and their keys.")

Name = Annotated[str, typer.Argument(help="The fleet's name.")]
KeyFile = Annotated[
    Path,
    typer.Option(
        "--key",
        help="The file with the fleet's key, mode 0600: 64 hex digits. Keep it with who makes the "
        "devices.",
    ),
]
Version = Annotated[int, typer.Option("--version", min=1, max=255, help="Of the fleet's key.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.callback(invoke_without_command=True)
def fleet(context: typer.Context) -> None:
    """Let hubs prove who they are, by fleets and their keys."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@access_app.command("key")
def make_key(
    file: Annotated[Path, typer.Argument(help="The file to make, outside the data folder.")],
) -> None:
    """Make a key file, by which nodes wrap secrets at rest. Copy it to all nodes of the set."""
    from weir.cli.output import hint
    from weir.server.key_files import create_key_file

    create_key_file(file)
    print(f"{file} holds a new key; its user alone may read it")
    hint(f"Next: copy it to all nodes, and start each with WEIR__ACCESS__KEY_FILE={file}")


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
    bounds, secret = (hub_number(first), hub_number(last)), _key(key, make=True)

    async def work(client: Client) -> Fleet:
        return await client.fleets.put(name, *bounds, level, version, secret, tag)

    _tell("weir.fleet/1", url, connected(url, work), as_json)


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
        print("there are no fleets: every hub comes in without a proof")


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
    secret = _key(key, make=True)

    async def work(client: Client) -> Fleet:
        known = await _named(client, name)
        return await client.fleets.put(
            name, known.first, known.last, known.level, version, secret, known.tag
        )

    _tell("weir.fleet/1", url, connected(url, work), as_json)


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

    _tell("weir.fleet/1", url, connected(url, work), as_json)


@app.command()
def remove(name: Name, yes: Yes = False, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Remove a fleet. In an open set anybody may come as its hubs then."""
    from weir.cli.output import typed

    asked = f"the hubs of fleet {name} may come without a proof. Type its name to remove it"
    if not yes and not typed(asked, name):
        raise typer.Exit(1)

    async def work(client: Client) -> Fleet:
        return await client.fleets.remove(name)

    _tell("weir.fleet/1", url, connected(url, work), as_json, "removed: ")


@device_app.command()
def enrol(
    hub: HubNumber,
    key: KeyFile,
    version: Version = 1,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print the secret that is to be flashed into the device of a hub, for its generation."""
    from weir.cli.output import print_json

    number, secret = hub_number(hub), _key(key, make=False)

    async def work(client: Client) -> tuple[int, FleetDevice]:
        return client.welcome.system, await client.fleets.device(number)

    system, found = connected(url, work)
    if not found.fleet:
        raise typer.BadParameter(f"hub {number} belongs to no fleet: see `weir fleet list`")
    made = found.secret(secret, system).hex()
    if as_json:
        row = {**_device_row(found), "system": system, "version": version, "secret": made}
        print_json("weir.device-secret/1", {"url": url}, row)
    else:
        print(f"hub {number}, generation {found.generation}, version {version}: {made}")


@device_app.command()
def replace(
    hub: HubNumber,
    now: Annotated[
        bool, typer.Option("--now", help="The one before stays out at once: it was lost or stolen.")
    ] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Let the next generation of a hub's device be the one that comes in. The one before may come
    until the new one has; with --now it stays out at once, also if it was to be replaced before.
    `weir device enrol` prints the secret of the new one.
    """
    number = hub_number(hub)

    async def work(client: Client) -> FleetDevice:
        known = await client.fleets.device(number)
        return await client.fleets.replace_device(number, known.generation + 1)

    async def end(client: Client) -> AccessChange:
        known = await client.fleets.device(number)
        following = known.generation + (known.before is None)
        return await client.fleets.end_devices_before(number, following)

    if now:
        change(url, as_json, f"the devices before are out as hub {number}", {"hub": number}, end)
    else:
        _tell_device(url, connected(url, work), as_json)


@device_app.command()
def revoke(hub: HubNumber, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Let nobody come in as a hub, until its device is replaced. Its connections end on every shard
    that is reached; the others are named.
    """
    number = hub_number(hub)

    async def work(client: Client) -> AccessChange:
        known = await client.fleets.device(number)
        return await client.fleets.revoke_device(number, known.generation)

    change(url, as_json, f"the device of hub {number} is revoked", {"hub": number}, work)


@device_app.command("status")
def status(hub: HubNumber, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the fleet and the generation of a hub's device, and whether it was revoked."""
    number = hub_number(hub)

    async def work(client: Client) -> FleetDevice:
        return await client.fleets.device(number)

    _tell_device(url, connected(url, work), as_json)


async def _named(client: Client, name: str) -> Fleet:
    from weir.errors import BadRequest

    for one in await client.fleets.list():
        if one.name == name:
            return one
    raise BadRequest(f"there is no fleet {name!r}: `weir fleet list` shows them")


def _key(path: Path, *, make: bool) -> bytes:
    from weir.errors import BadRequest
    from weir.server.key_files import read_secret, write_secret

    if make and not path.exists():
        write_secret(path, secrets.token_bytes(32).hex().encode() + b"\n")
    try:
        key = bytes.fromhex(read_secret(path).decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise BadRequest(f"{path} holds no fleet key: 64 hex digits")
    return key


def _tell(schema: str, url: str, found: Fleet, as_json: bool, word: str = "") -> None:
    from weir.cli.output import print_json

    if as_json:
        print_json(schema, {"url": url}, _row(found))
    else:
        print(
            f"{word}fleet {found.name}: hubs {found.first} to {found.last}, level "
            f"{found.level.name.lower()}, key versions {_versions(found)}"
        )


def _tell_device(url: str, found: FleetDevice, as_json: bool) -> None:
    from weir.cli.output import print_json

    if as_json:
        print_json("weir.device-status/1", {"url": url}, _device_row(found))
    elif not found.fleet:
        print(f"hub {found.hub} belongs to no fleet")
    else:
        end = ", revoked" if found.is_revoked else ""
        if found.before is not None:
            end = f"; generation {found.before} may come until this one does"
        print(f"hub {found.hub} of fleet {found.fleet}: generation {found.generation}{end}")


def _row(found: Fleet) -> dict[str, Any]:
    return {
        "fleet": found.name,
        "first": found.first,
        "last": found.last,
        "level": found.level.name.lower(),
        "versions": list(found.versions),
        "tag": found.tag,
    }


def _device_row(found: FleetDevice) -> dict[str, Any]:
    return {
        "hub": found.hub,
        "fleet": found.fleet,
        "generation": found.generation,
        "revoked": found.is_revoked,
        "before": found.before,
    }


def _versions(found: Fleet) -> str:
    return ", ".join(map(str, found.versions))
