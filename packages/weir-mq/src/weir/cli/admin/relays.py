"""`weir relay`: run a relay of a core.

Exit codes: 0 stopped; 1 an error; 2 wrong usage; 74 the disk failed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.output import print_json
from weir.cli.server import stop_at_eof

if TYPE_CHECKING:
    from weir.relay_node.host import RelayConfig
    from weir.relay_node.serve import Started
    from weir.tls.files import ServerFiles


def relay(
    core: Annotated[
        str,
        typer.Argument(help="The core: weir://[user@]host[:port][,host2[:port2]], or weirs://."),
    ],
    data: Annotated[Path, typer.Option("--data", help="The relay's folder.")] = Path("weir-relay"),
    host: Annotated[str, typer.Option("--host", help="Where clients connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: a free one.")] = 6800,
    topics: Annotated[
        str, typer.Option("--topics", help="As in a,shop/b; without it, all topics.")
    ] = "",
    tags: Annotated[
        str | None,
        typer.Option("--tags", help="As in a,b; an empty one stands for messages without a tag."),
    ] = None,
    brokerset: Annotated[int, typer.Option("--set", help="The id of its set.")] = 0,
    node: Annotated[int, typer.Option("--node", help="Its number in the topology.")] = 0,
    upper: Annotated[
        list[str] | None,
        typer.Option(
            "--upper",
            metavar="weir://HOST[:PORT]",
            help="A relay to pull from, while it has the messages; the preferred one first.",
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz there."),
    ] = "",
    certificate: Annotated[
        str, typer.Option("--tls-certificate", help="Serve by TLS alone, with this PEM file.")
    ] = "",
    key: Annotated[str, typer.Option("--tls-key", help="The key of the certificate.")] = "",
    trust: Annotated[str, typer.Option("--tls-trust", help="The bundle of CAs: ca.pem.")] = "",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen where others reach it, without logins or TLS."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object once it serves.")
    ] = False,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", hidden=True, help="Stop when stdin ends.")
    ] = False,
) -> None:
    """Run a relay until Ctrl-C or SIGTERM: it pulls topics from a core, and serves reads of them
    with the core's offsets, stamps and order, also while the core is away.

    Without a user in the address, or a token in the environment, it holds what anybody may read
    from the core, and serves that to anybody. As a user it serves users alone: they log in as in
    the core, which says what each may read. Its password or token is found as that of a client is.
    """
    pages = _pages_at(metrics)
    tls = _tls_of(certificate, key, trust)
    config = _relay_config(core, topics, tags, brokerset, node, upper or [], pages, tls)
    if not (config.is_private and tls):
        _check_reach("--host", host, insecure)
    if pages:
        _check_reach("--metrics", pages[0], insecure)
    _run(config, data, (host, port), until_eof, as_json)


def _run(
    config: RelayConfig, data: Path, at: tuple[str, int], until_eof: bool, as_json: bool
) -> None:
    import logging

    from weir.relay_node.serve import run_until_signal
    from weir.server.interpreter import run_loop

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)

    def started(relay: Started) -> None:
        if until_eof:
            stop_at_eof()
        _tell(config, data, relay, as_json)

    run_loop(run_until_signal(config, data, at, started))


def _check_reach(option: str, host: str, insecure: bool) -> None:
    from weir.server.exposure import is_reachable

    if not insecure and is_reachable(host):
        raise typer.BadParameter(
            f"{host} can be reached by others: give the relay a user in the core and "
            "--tls-certificate, so that clients log in by TLS, or listen on 127.0.0.1; or say by "
            "--insecure that the relay may serve anybody"
            if option == "--host"
            else f"{host} can be reached by others, and anybody can read the pages: serve them on "
            "127.0.0.1, or confirm by --insecure",
            param_hint=option,
        )


def _tell(config: RelayConfig, data: Path, relay: Started, as_json: bool) -> None:
    """Print where a relay serves."""
    scheme = "weirs" if config.tls else "weir"
    url = f"{scheme}://{in_url(relay.host)}:{relay.port}"
    pages = f"http://{in_url(config.metrics[0])}:{relay.metrics_port}" if config.metrics else None
    if as_json:
        asked = {
            "core": config.core, "data": str(data), "topics": sorted(config.topics) or None,
            "tags": None if config.tags is None else sorted(config.tags),
            "uppers": len(config.uppers), "private": config.is_private,
        }  # fmt: skip
        founded = relay.founded
        found = {
            "url": url, "metrics": pages, "system": f"{founded.system:x}",
            "brokerset": founded.brokerset, "node": founded.node,
        }  # fmt: skip
        print_json("weir.relay/1", asked, found)
    else:
        print(f"weir relays {config.core} at {url} from {data}")
        if pages:
            print(f"metrics at {pages}/metrics")
    sys.stdout.flush()


def in_url(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _tls_of(certificate: str, key: str, trust: str) -> ServerFiles | None:
    from weir.tls.files import ServerFiles

    given = (certificate, key, trust)
    if not any(given):
        return None
    if not all(given):
        raise typer.BadParameter(
            "give --tls-certificate, --tls-key and --tls-trust together",
            param_hint="--tls-certificate",
        )
    return ServerFiles(*given)


def _pages_at(metrics: str) -> tuple[str, int] | None:
    from weir.server.config import split_address

    try:
        return split_address(metrics) if metrics else None
    except ValueError as error:
        raise typer.BadParameter(f"an address {error}", param_hint="--metrics") from None


def _relay_config(
    core: str, topics: str, tags: str | None, brokerset: int, node: int, upper: list[str],
    metrics: tuple[str, int] | None, tls: ServerFiles | None,
) -> RelayConfig:  # fmt: skip
    from weir.client.arguments import parse_url
    from weir.client.connection.credentials import find_credentials, split_user
    from weir.model.ids import NODE_MAX
    from weir.model.limits import SET_ID_MAX, TAG_BYTES_MAX
    from weir.model.topic import split_name
    from weir.relay_node.host import RelayConfig

    try:
        plain, user = split_user(core)
        hosts = parse_url(plain)
        credentials = find_credentials(user, None, None, hosts)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="CORE") from None
    named = frozenset("/".join(split_name(name)) for name in topics.split(",") if name)
    wanted = None if tags is None else frozenset(tag.strip() for tag in tags.split(","))
    if wanted is not None and any(len(tag.encode()) > TAG_BYTES_MAX for tag in wanted):
        raise typer.BadParameter(f"a tag has {TAG_BYTES_MAX} bytes at most", param_hint="--tags")
    if not 0 <= brokerset <= SET_ID_MAX or not 0 <= node <= NODE_MAX:
        raise typer.BadParameter(
            f"a set is 0 to {SET_ID_MAX:,}, a node 1 to {NODE_MAX:,}", param_hint="--set, --node"
        )
    try:
        uppers = tuple(tuple(parse_url(url)) for url in upper)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--upper") from None
    return RelayConfig(hosts, brokerset, node, named, wanted, uppers, metrics, credentials, tls)
