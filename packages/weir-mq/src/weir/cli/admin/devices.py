"""`weir device`: list, show, forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.administration import Device
    from weir.client.client import Client

app = typer.Typer(name="device", help="Show the state of devices that publish, and forget hubs.")

Topic = Annotated[str, typer.Argument(help="`topic`, or `namespace/topic`.")]
HubNumber = Annotated[str, typer.Argument(metavar="HUB", help="The hub's number: 2583 or 0xa17.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_HUB_MAX = (1 << 64) - 1


@app.callback(invoke_without_command=True)
def device(context: typer.Context) -> None:
    """Show the state of devices that publish, and forget hubs."""
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
    url: Url = DEFAULT_URL,
) -> None:
    """Forget what a hub has published, for room. A tombstone stays: the hub may come again with a
    boot count above all that it had, and what it sent before is refused.
    """
    from weir.cli.output import typed

    number = hub_number(hub)
    asked = f"hub {hub} must come with a higher boot count then. Type its number to forget it"
    if not yes and not typed(asked, hub):
        raise typer.Exit(1)

    async def work(client: Client) -> int:
        return await client.forget_hub(topic, number)

    devices = connected(url, work)
    print(f"hub {number:#x} of {topic} is forgotten, with {devices} of its devices")


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
