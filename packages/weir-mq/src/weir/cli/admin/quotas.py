"""`weir quota`: how much namespaces and principals may use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.admin.devices import AsJson
from weir.cli.connection import DEFAULT_URL, Url, changed, connected

if TYPE_CHECKING:
    from weir.client.access import Quota
    from weir.client.client import Client

app = typer.Typer(name="quota", help="Limit how much namespaces and principals may use.")

Entity = Annotated[
    str, typer.Argument(help="namespace:NAME, user:NAMESPACE/NAME, fleet:NAME or anonymous.")
]
_SIZE = re.compile(r"(\d+)(?:([KMGT])(?:i?B)?)?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _of(quota: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=f"{quota}: a number, such as 5000 or 10M (times 1,048,576), or none."
    )
    return option


BytesIn = Annotated[str, _of("Bytes a second that are published")]
BytesOut = Annotated[str, _of("Bytes a second that are read")]
Requests = Annotated[str, _of("Requests a second")]
Connections = Annotated[str, _of("Connections at once")]
Producers = Annotated[str, _of("Producer ids")]
Topics = Annotated[str, _of("Topics of the namespace")]
Partitions = Annotated[str, _of("Partitions of the namespace")]
Clusters = Annotated[str, _of("Clusters of consumers of the namespace")]
StorageBytes = Annotated[str, _of("Bytes that the namespace stores, one replica of each")]


@app.callback(invoke_without_command=True)
def quota(context: typer.Context) -> None:
    """Limit how much namespaces and principals may use."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("set")
def set_quota(
    entity: Entity,
    bytes_in: BytesIn = "",
    bytes_out: BytesOut = "",
    requests: Requests = "",
    connections: Connections = "",
    producers: Producers = "",
    topics: Topics = "",
    partitions: Partitions = "",
    clusters: Clusters = "",
    storage_bytes: StorageBytes = "",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Set quotas of ENTITY; those that are not named stay. Rates are those of the whole set."""
    given = {
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "requests": requests,
        "connections": connections,
        "producers": producers,
        "topics": topics,
        "partitions": partitions,
        "clusters": clusters,
        "storage_bytes": storage_bytes,
    }
    limits = {name: _number(name, text) for name, text in given.items() if text}
    if not limits:
        raise typer.BadParameter("name a quota and its limit, such as --bytes-in 10M")

    async def work(client: Client) -> Quota:
        return await client.quotas.set(entity, limits)

    _tell(url, changed(url, work), as_json)


@app.command("list")
def list_quotas(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List all quotas, and how much of each is used."""
    from weir.cli.output import print_json, print_table

    async def work(client: Client) -> tuple[Quota, ...]:
        return await client.quotas.list()

    found = connected(url, work)
    if as_json:
        print_json("weir.quotas/1", {"url": url}, {"quotas": [_row(one) for one in found]})
    elif found:
        print_table(
            ("ENTITY", "QUOTA", "LIMIT", "USED"),
            [
                (one.entity, name, limit, one.used.get(name, "-"))
                for one in found
                for name, limit in one.limits.items()
            ],
        )
    else:
        print("there are no quotas: usage is not limited")


@app.command()
def show(entity: Entity, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the quotas of ENTITY, how much of each is used, and for how long it was throttled."""

    async def work(client: Client) -> Quota:
        return await client.quotas.describe(entity)

    _tell(url, changed(url, work), as_json)


@app.command()
def remove(entity: Entity, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Remove all quotas of ENTITY."""

    async def work(client: Client) -> Quota:
        return await client.quotas.remove(entity)

    _tell(url, changed(url, work), as_json, "removed: ")


def _number(quota: str, text: str) -> int | None:
    if text == "none":
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        option = quota.replace("_", "-")
        raise typer.BadParameter(f"--{option} {text}: give a number, such as 5000 or 10M, or none")
    return int(found[1]) * _UNITS[found[2] or ""]


def _tell(url: str, found: Quota, as_json: bool, word: str = "") -> None:
    from weir.cli.output import print_json

    if as_json:
        print_json("weir.quota/1", {"url": url}, _row(found))
    elif not found.limits:
        print(f"{word}{found.entity} has no quotas")
    else:
        parts = [
            f"{name} {found.used[name]:,} of {limit:,}" if name in found.used
            else f"{name} {limit:,}"
            for name, limit in found.limits.items()
        ]  # fmt: skip
        waited = f"; throttled for {found.throttled_ms:,} ms" if found.throttled_ms else ""
        print(f"{word}{found.entity}: {', '.join(parts)}{waited}")


def _row(found: Quota) -> dict[str, Any]:
    return {
        "entity": found.entity,
        "limits": dict(found.limits),
        "used": dict(found.used),
        "throttled_ms": found.throttled_ms,
    }
