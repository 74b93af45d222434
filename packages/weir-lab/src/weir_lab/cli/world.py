"""`weir world` and `weir bench tiers --cities`: data centres in several cities, on this machine."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir_lab.cli.bench_runs import Json, say, stop_as_by_ctrl_c, usage

if TYPE_CHECKING:
    from weir_lab.company.run import Result
    from weir_lab.network.emulated import EmulatedNetwork, ProxiedNetwork

Proxies = Annotated[
    bool,
    typer.Option("--proxies", help="Emulate the network by TCP proxies, as without /dev/net/tun."),
]
#: Links between cities with less than this part of the busiest link's bytes are not printed.
_SHOWN = 0.01


def world(
    brokers: Annotated[int, typer.Option(help="Nodes of each BrokerSet.")] = 1,
    readers: Annotated[int, typer.Option(help="Readers at each access set.")] = 3,
    rate: Annotated[
        float, typer.Option(help="Messages a second from Beijing; a tenth from each other city.")
    ] = 100.0,
    seconds: Annotated[
        float, typer.Option(help="How long is written with readers at the core, and with tiers.")
    ] = 10.0,
    size: Annotated[int, typer.Option(help="Bytes of a message's value.")] = 200,
    cut: Annotated[
        str, typer.Option(help="Data centres to cut off, one after the other, as in a,b.")
    ] = "beijing-mobile,shanghai-mobile-tandem,tianjin-telecom-1",
    down: Annotated[float, typer.Option(help="Seconds that each is cut off.")] = 5.0,
    data: Annotated[
        Path | None, typer.Option(help="Keep what all nodes write here. [default: it is removed]")
    ] = None,
    proxies: Proxies = False,
    as_json: Json = False,
) -> None:
    """Run a company with data centres in six cities, on an emulated network.

    Three core sets in Beijing, three tandem sets and six access sets run, each in a network of its
    own; packets between them take as long as between the cities. It prints how long confirms and
    deliveries take, and the bytes of each link, with readers at the core and with tiers. Then data
    centres are cut off, and come back. Exit code 1 if a reader lacked a message, or was given one
    twice, in another order or with other bytes than the core has.
    """
    import msgspec

    from weir_lab.cli.measured import print_measured
    from weir_lab.company.run import Settings, measure
    from weir_lab.company.sites import OPERATOR, SITES, links

    cuts = tuple(name for name in cut.split(",") if name)
    settings = Settings(brokers, readers, rate, seconds, size, cuts, down)
    try:
        settings.check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="world") from None
    make = _network(proxies)
    began = time.monotonic()

    def tell(text: str) -> None:
        say(f"{time.monotonic() - began:6.1f} s  {text}")

    with tempfile.TemporaryDirectory(prefix="weir-world-") as name, stop_as_by_ctrl_c():
        tell(f"makes a network of {len(SITES)} places")
        places = [OPERATOR, *(one.name for one in SITES)]
        with make(places, links()) as network:
            result = measure(settings, network, network.kind, data or Path(name), tell)
    if as_json:
        print_measured("weir.world/1", settings, msgspec.to_builtins(result))
    else:
        _show(result)
    if not result.clean:
        raise typer.Exit(1)


def _network(proxies: bool) -> type[EmulatedNetwork | ProxiedNetwork]:
    """Return the kind of network to make: of devices, in a namespace which this process enters, or
    of proxies, if that is wanted or nobody may make devices.
    """
    from weir_lab.network.emulated import EmulatedNetwork, ProxiedNetwork
    from weir_lab.network.namespaces import NoNetwork, enter

    if proxies:
        return ProxiedNetwork
    try:
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise NoNetwork("/dev/net/tun is not there, or not for us")
        enter(sys.argv[1:])
    except NoNetwork as error:
        say(f"TCP proxies are used instead of devices: {error}")
        return ProxiedNetwork
    return EmulatedNetwork


def _show(result: Result) -> None:
    from weir.cli.output import print_table
    from weir_lab.company.sites import is_backbone

    print_table(
        ("CITY", "CONFIRM P50 MS", "P99", "FROM CORE P50 MS", "P99", "BY TIERS P50 MS", "P99"),
        [
            (one.city, *(
                figure for times in (one.confirm, one.delivery_direct, one.delivery)
                for figure in ((times.p50_ms, times.p99_ms) if times else ("-", "-"))
            ))
            for one in result.cities
        ],
    )  # fmt: skip
    print()
    most = max(max(one.direct, one.tiers) for one in result.links)
    rows = [
        (one.source, one.target, one.direct, one.tiers) for one in result.links
        if is_backbone(one.source, one.target) and max(one.direct, one.tiers) > most * _SHOWN
    ]  # fmt: skip
    print_table(("BYTES FROM", "TO", "READERS AT THE CORE", "WITH TIERS"), rows)
    print(
        f"all links between cities: {result.backbone_direct:,} bytes with readers at the core, "
        f"{result.backbone_tiers:,} with tiers: {result.backbone_ratio:.2f} of them\n"
    )
    for cut in result.cuts:
        confirms = max(cut.confirm_ms.values())
        given = ", ".join(f"{city} {ms:,.0f} ms" for city, ms in cut.delivery_ms.items())
        print(
            f"{cut.site} was cut off for {cut.seconds:g} s: confirmed after {confirms:,.0f} ms at "
            f"most, given after at most: {given}"
        )
    for example in (*result.examples, *result.failed):
        print(example)
    print(
        f"{result.messages:,} messages, {len(result.readings)} readings: {result.lost} lost, "
        f"{result.repeated} repeated, {result.out_of_order} out of order, "
        f"{result.differing} differing"
    )


def compare_cities(
    cities: int, readers: int, chosen: Mapping[str, int | None], folder: str | None,
    proxies: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure, and print what came of it; what was not chosen has its default."""
    import msgspec

    from weir.cli.output import print_table

    with usage("tiers"):
        from weir_lab.cli.measured import print_measured
        from weir_lab.company.cities import Settings, links, measure, places

        given = {name: value for name, value in chosen.items() if value is not None}
        settings = Settings(cities, readers, **given, folder=folder)
        settings.check()
    make = _network(proxies)
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name,
        stop_as_by_ctrl_c(),
        make(places(settings), links(settings)) as network,
    ):
        result = measure(settings, network, Path(name), say)
    if as_json:
        print_measured("weir.bench.tiers-cities/1", settings, msgspec.to_builtins(result))
    else:
        sides = (("at the core", result.direct), ("at relays", result.relays))
        print_table(
            ("READERS", "BYTES MOVED", "BYTES WANTED BY CITIES", "P50 MS", "P99 MS"),
            [(where, one.moved, one.matching, one.delivery.p50_ms, one.delivery.p99_ms)
             for where, one in sides],
        )  # fmt: skip
        for example in result.examples:
            print(example)
        print(
            f"{result.messages:,} messages, {result.cities} cities with {result.readers} readers: "
            f"relays move {result.ratio:.3f} of the bytes; {result.lost} lost, {result.repeated} "
            f"repeated, {result.out_of_order} out of order, {result.differing} differing"
        )
    if not result.clean:
        raise typer.Exit(1)
