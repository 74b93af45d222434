"""`weir device`: what devices have published, and which device may log in as a hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Url, changed, connected

if TYPE_CHECKING:
    from weir.client.access import AccessChange, FleetDevice
    from weir.client.administration import Device
    from weir.client.client import Client

app = typer.Typer(name="device", help="Show devices, forget hubs; say which devices may log in.")

Topic = Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")]
HubNumber = Annotated[str, typer.Argument(metavar="HUB", help="The hub's number: 2583 or 0xa17.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

KeyFile = Annotated[
    Path,
    typer.Option(
        "--key",
        help="The file with the fleet's key, mode 0600: 64 hex digits. Only the maker of the "
        "devices needs it.",
    ),
]
Version = Annotated[int, typer.Option("--version", min=1, max=255, help="Of the fleet's key.")]

_HUB_MAX = (1 << 64) - 1


@app.callback(invoke_without_command=True)
def device(context: typer.Context) -> None:
    """Show devices, forget hubs; say which devices may log in."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_hubs(topic: Topic, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the hubs that published with sequences to a topic."""
    from weir.cli.output import print_json, print_table

    rows = _by_hub(_devices(url, topic, None))
    if as_json:
        names = ("hub", "partition", "devices", "boot", "last_offset")
        hubs = [dict(zip(names, row, strict=True)) for row in rows]
        print_json("weir.hubs/1", {"url": url}, {"topic": topic, "hubs": hubs})
    elif rows:
        shown = [(hex(hub), *rest) for hub, *rest in rows]
        print_table(("HUB", "PARTITION", "DEVICES", "BOOT", "LAST OFFSET"), shown)
    else:
        print(f"no hub has published to {topic} with a sequence")


@app.command()
def show(topic: Topic, hub: HubNumber, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the boot count and the next sequence of each device of a hub."""
    from msgspec.structs import asdict

    from weir.cli.output import print_json, print_table

    number = hub_number(hub)
    devices = _devices(url, topic, number)
    if as_json:
        found = {"topic": topic, "hub": number, "devices": [asdict(one) for one in devices]}
        print_json("weir.devices/1", {"url": url}, found)
    elif devices:
        print_table(
            ("SN", "PARTITION", "GENERATION", "BOOT", "NEXT SEQUENCE", "LAST OFFSET"),
            [
                (
                    one.sn,
                    one.partition,
                    one.generation,
                    one.boot,
                    one.next_sequence,
                    one.offset,
                )
                for one in devices
            ],
        )
    else:
        print(f"hub {number:#x} has published nothing to {topic} with a sequence")


@app.command()
def forget(
    topic: Topic,
    hub: HubNumber,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Forget what a hub has published, for room. A tombstone stays: the hub may come again with a
    boot count above all that it had, and what it sent before is refused.
    """
    from weir.cli.output import counted, print_json, typed

    number = hub_number(hub)
    asked = f"hub {hub} must then connect with a higher boot count. Type its number to forget it"
    if not yes and not typed(asked, hub):
        raise typer.Exit(1)

    async def work(client: Client) -> int:
        return await client.forget_hub(topic, number)

    devices = changed(url, work)
    if as_json:
        told = {"topic": topic, "hub": number, "forgotten": devices}
        print_json("weir.hub-forgotten/1", {"url": url}, told)
    else:
        print(f"hub {number:#x} of {topic} is forgotten, with {counted(devices, 'device')}")


@app.command()
def enrol(
    hub: HubNumber,
    key: KeyFile,
    version: Version = 1,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print the secret that is to be flashed into the device of a hub, for its generation."""
    from weir.cli.output import print_json

    number, secret = hub_number(hub), fleet_key(key, make=False)

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


@app.command()
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
    from weir.cli.access.verbs import change

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
        _tell_device(url, changed(url, work), as_json)


@app.command()
def revoke(hub: HubNumber, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Let nobody come in as a hub, until its device is replaced. Its connections end on every shard
    that is reached; the others are named.
    """
    from weir.cli.access.verbs import change

    number = hub_number(hub)

    async def work(client: Client) -> AccessChange:
        known = await client.fleets.device(number)
        return await client.fleets.revoke_device(number, known.generation)

    change(url, as_json, f"the device of hub {number} is revoked", {"hub": number}, work)


@app.command("status")
def status(hub: HubNumber, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the fleet and the generation of a hub's device, and whether it was revoked."""
    number = hub_number(hub)

    async def work(client: Client) -> FleetDevice:
        return await client.fleets.device(number)

    _tell_device(url, connected(url, work), as_json)


def _devices(url: str, topic: str, hub: int | None) -> list[Device]:
    async def work(client: Client) -> list[Device]:
        return await client.hubs(topic, hub)

    return connected(url, work)


def hub_number(hub: str) -> int:
    """Return the number of a hub as it is typed. Raises `typer.BadParameter`."""
    try:
        number = int(hub, 0)
    except ValueError:
        number = -1
    if not 0 <= number <= _HUB_MAX:
        raise typer.BadParameter(f"{hub!r} is no hub: give a number, as 2583 or 0xa17")
    return number


def _by_hub(devices: list[Device]) -> list[tuple[int, int, int, int, int]]:
    """Return (hub, partition, devices, highest boot, last offset)."""
    found: dict[tuple[int, int], list[Device]] = {}
    for one in devices:
        found.setdefault((one.hub, one.partition), []).append(one)
    return [
        (hub, partition, len(some), max(d.boot for d in some), max(d.offset for d in some))
        for (hub, partition), some in sorted(found.items())
    ]


def fleet_key(path: Path, *, make: bool) -> bytes:
    """Return the key in a file, of 32 bytes; with `make` draw one if there is no such file. Raises
    `BadRequest` for a file without one.
    """
    import secrets

    from weir.errors import BadRequest
    from weir.server.key_files import read_secret, write_secret

    if make and not path.exists():
        write_secret(path, secrets.token_bytes(32).hex().encode() + b"\n")
    try:
        key = bytes.fromhex(read_secret(path).decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise BadRequest(f"{path} holds no fleet key: name a file with 64 hex digits")
    return key


def _tell_device(url: str, found: FleetDevice, as_json: bool) -> None:
    from weir.cli.output import print_json

    if as_json:
        print_json("weir.device-status/1", {"url": url}, _device_row(found))
    elif not found.fleet:
        print(f"hub {found.hub} belongs to no fleet")
    else:
        end = ", revoked" if found.is_revoked else ""
        if found.before is not None:
            end = f"; generation {found.before} may connect until this one does"
        print(f"hub {found.hub} of fleet {found.fleet}: generation {found.generation}{end}")


def _device_row(found: FleetDevice) -> dict[str, Any]:
    return {
        "hub": found.hub,
        "fleet": found.fleet,
        "generation": found.generation,
        "revoked": found.is_revoked,
        "before": found.before,
    }
