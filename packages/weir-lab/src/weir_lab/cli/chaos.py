"""`weir chaos`: what clients see of a set whose nodes are killed, paused or cut off."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir_lab.cli.bench_runs import Json, stop_as_by_ctrl_c

if TYPE_CHECKING:
    from weir.testing.nodes import Berth, NodeSet
    from weir_lab.bench.faults.chaos.faults import Fault
    from weir_lab.bench.faults.chaos.rounds import Result, Settings, Where

app = typer.Typer(
    name="chaos",
    help="Kill, pause and cut off nodes under load, and count lost and repeated messages.",
    no_args_is_help=True,
)

_SCHEMA = "weir.chaos/1"
_NODES = 3


@dataclass(frozen=True)
class Wanted:
    """The options that every verb has."""

    times: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 10
    rate: Annotated[
        float, typer.Option(help="Messages a second, without waiting for confirms.")
    ] = 1_000
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100
    devices: Annotated[int, typer.Option(help="Devices that send beside the producer.")] = 2
    calm: Annotated[float, typer.Option(help="Seconds of load before each strike.")] = 1.0
    as_json: Json = False


Data = Annotated[
    Path | None, typer.Option(help="Keep what the nodes write here. [default: it is removed]")
]
Down = Annotated[float, typer.Option(help="Seconds until it is started again.")]
Seconds = Annotated[float, typer.Option(help="How long it lasts.")]


def _verb(name: str) -> Callable[[Callable[..., None]], None]:
    """Make a verb of a function of what is `Wanted` and of its own options."""

    def make(run: Callable[..., None]) -> None:
        _, *own = inspect.signature(run, eval_str=True).parameters.values()
        shared = inspect.signature(Wanted, eval_str=True).parameters.values()

        def verb(**given: Any) -> None:
            wanted = Wanted(**{one.name: given.pop(one.name) for one in fields(Wanted)})
            run(wanted, **given)

        options = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*shared, *own)]
        verb.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        verb.__annotations__ = {one.name: one.annotation for one in options}
        app.command(name, help=inspect.getdoc(run))(verb)

    return make


@_verb("kill-leader")
def _kill_leader(wanted: Wanted, down: Down = 2.0, data: Data = None) -> None:
    """Kill (-9) the node that leads, start it again, and repeat."""
    from weir_lab.bench.faults.chaos.faults import Killed

    _strike(wanted, data, lambda nodes: Killed(nodes, True, down))


@_verb("kill-follower")
def _kill_follower(wanted: Wanted, down: Down = 2.0, data: Data = None) -> None:
    """Kill (-9) a node that follows: clients should not notice."""
    from weir_lab.bench.faults.chaos.faults import Killed

    _strike(wanted, data, lambda nodes: Killed(nodes, False, down))


@_verb("pause-leader")
def _pause_leader(wanted: Wanted, seconds: Seconds = 10.0, data: Data = None) -> None:
    """Stop the leading node (SIGSTOP) and continue it; it must not answer with stale data."""
    from weir_lab.bench.faults.chaos.faults import Paused

    _strike(wanted, data, lambda nodes: Paused(nodes, seconds))


@_verb("partition")
def _partition(wanted: Wanted, seconds: Seconds = 5.0, data: Data = None) -> None:
    """Cut the leading node off from the other nodes, but not from clients.

    Each node gets a network namespace: that needs root, or a kernel that lets users make them.
    """
    from weir_lab.bench.faults.chaos.faults import CutOff
    from weir_lab.bench.faults.chaos.nets import Networks
    from weir_lab.network.namespaces import enter

    enter(sys.argv[1:])
    networks = Networks(_NODES)
    try:
        _strike(wanted, data, lambda _: CutOff(networks, seconds), networks.berths)
    finally:
        networks.close()


@_verb("restart-all")
def _restart_all(wanted: Wanted, data: Data = None) -> None:
    """Kill (-9) all nodes at once, and restart all."""
    from weir_lab.bench.faults.chaos.faults import AllKilled

    _strike(wanted, data, AllKilled)


@_verb("rotate")
def _rotate(wanted: Wanted, down: Down = 1.0, data: Data = None) -> None:
    """Rotate certificates, the CA and the wrapping key, and close the set, under load.

    Each round renews the certificate of one node, and kills it (-9) while it has but a half of the
    new files. Nine rounds replace the CA and the wrapping key once, and lead from open to closed;
    commands of the operator are killed in their course, too, and run again.
    """
    import random

    from weir.testing.nodes import READY, NodeSet, Patient
    from weir_lab.bench.faults.chaos.rotation import Rotation
    from weir_lab.bench.faults.chaos.rounds import TOPIC, Where
    from weir_lab.bench.faults.chaos.secured import Operator, Secured

    with tempfile.TemporaryDirectory(prefix="weir-chaos-") as name:
        folder = data or Path(name)
        nodes = NodeSet(folder, _NODES, 1, settings=READY)
        place = folder / "secrets"
        place.mkdir(mode=0o700, exist_ok=True)
        secured = Secured(nodes, place)
        fault = Rotation(secured, Operator(secured, random.Random()), down)
        settings = _settings(wanted, fault.name)
        places = [(member.host, member.port) for member in nodes.members]
        where = Where(secured.url(), places, login=secured.login)

        def run(tell: Callable[..., None]) -> Result:
            try:
                nodes.start(Patient())
                asyncio.run(secured.admit(TOPIC))
                return _rounds(where, fault, settings, tell)
            finally:
                nodes.stop()

        _tell(wanted, fault, _NODES, run)


@app.command("regain")
def _regain(
    times: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 20,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topic.")] = 20,
    down: Down = 3.0,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Kill (-9) and restart two of three nodes: each partition changes its leader at most once.

    A round goes well if this holds and all partitions confirm within 2 s, both from the moment at
    which the first of the two serves again. The planned return of leaderships to preferred nodes
    begins 5 s after an election, and is not watched.
    """
    import msgspec

    from weir.cli.output import print_json
    from weir.testing.nodes import READY, NodeSet, Patient
    from weir_lab.bench.faults.chaos.regain import Regained, run

    say = _say if as_json else print

    def tell(one: Regained) -> None:
        killed = " and ".join(map(str, one.killed))
        say(
            f"{one.number:4}  nodes {killed} killed  all confirmed after {one.confirmed_ms:,.0f} "
            f"ms  new leaders: {one.changes}, {one.changes_most} at most of a partition"
        )

    with tempfile.TemporaryDirectory(prefix="weir-chaos-") as name, stop_as_by_ctrl_c():
        nodes = NodeSet(data or Path(name), _NODES, 1, settings=READY)
        try:
            nodes.start(Patient())
            result = asyncio.run(run(nodes, times, partitions, down, tell))
        finally:
            nodes.stop()
    if as_json:
        given = {"times": times, "partitions": partitions, "down_s": down}
        print_json("weir.chaos-regain/1", given, msgspec.to_builtins(result))
    else:
        say(
            f"{result.well} of {result.rounds} rounds went well; all confirmed after "
            f"{result.confirmed_median_ms:,.0f} ms median, "
            f"{result.confirmed_max_ms:,.0f} ms at most"
        )
    if result.well < result.rounds:
        raise typer.Exit(1)


@app.command("toc")
def _toc(
    times: Annotated[int, typer.Option(min=1, help="How many faults of each kind.")] = 20,
    kinds: Annotated[
        str,
        typer.Option(
            help="What happens, by turns: process, aggregator, leader, cable, handling (a leader "
            "is killed while it handles a failure), stall and stop (SIGSTOP for 5 T and 50 T), "
            "minute (SIGSTOP for a minute), and at the end, in a network of its own, core (the "
            "cable between a spine and the core is cut)."
        ),
    ] = "process,aggregator,leader,cable,handling,stall,stop,core",
    workers: Annotated[int, typer.Option(help="Processes that send to each other.")] = 4,
    interval_ms: Annotated[float, typer.Option(help="The interval T of the network.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of what is killed or cut.")] = 1,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Kill (-9) and stop parts of a packet network, and cut cables between its switches.

    Processes, aggregators and leaders of the controller are killed; cables are cut both ways or
    one way; processes are stopped by SIGSTOP and go on. Two racks of processes send both services
    all the time. Each message is checked for what docs/PACKETS.md promises of failures. Detection
    and recovery are told in ms and in T. Exit code 1 if a promise is broken, or a process is
    excluded by mistake.
    """
    import msgspec

    from weir_lab.bench.toc.chaos import Round, Settings, measure
    from weir_lab.cli.measured import print_measured

    settings = Settings(times, tuple(kinds.split(",")), workers, interval_ms, seed=seed)
    try:
        settings.check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="chaos toc") from None
    say = _say if as_json else print

    def tell(one: Round) -> None:
        say(
            f"{one.number:4}  {one.kind:10}  {one.victim:18}  {one.failed} failed  told after "
            f"{one.detection_ms:,.0f} ms ({one.detection_t:,.0f} T)  on again after "
            f"{one.recovery_ms:,.0f} ms ({one.recovery_t:,.0f} T)"
        )

    with tempfile.TemporaryDirectory(prefix="weir-chaos-") as name, stop_as_by_ctrl_c():
        result = measure(settings, data or Path(name), tell)
    if as_json:
        print_measured("weir.chaos.toc/1", settings, msgspec.to_builtins(result))
    else:
        for example in result.examples:
            say(example)
        say(
            f"{result.messages:,} messages, {result.violations} violations, "
            f"{result.false_removals} processes excluded by mistake"
        )
    if not result.clean:
        raise typer.Exit(1)


@app.command("tiers")
def _tiers(
    times: Annotated[int, typer.Option(min=1, help="How many faults.")] = 100,
    rate: Annotated[float, typer.Option(help="Messages a second.")] = 300.0,
    calm: Annotated[float, typer.Option(help="Seconds of load before each fault.")] = 1.0,
    down: Annotated[float, typer.Option(help="Seconds that a fault lasts.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of when the moving reader and consumer move.")] = 1,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Kill (-9), pause and cut off core nodes, tandem relays and access relays under load.

    A core of three nodes, two tandem relays and three access relays run. A reader stays at each
    access relay, and one moves between them. What each was given is compared with the core. Beside
    each there is a consumer of one cluster. Exit code 1 if a message is lost, repeated, out of
    order or differs, or if two acks did the same message.
    """
    import msgspec

    from weir_lab.bench.faults.chaos.tiers import Settings, Strike, measure
    from weir_lab.cli.measured import print_measured

    settings = Settings(times, rate, calm, down, seed)
    try:
        settings.check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="chaos tiers") from None
    say = _say if as_json else print

    def tell(one: Strike) -> None:
        stalls = "  ".join(f"{number}: {ms:5,.0f} ms" for number, ms in one.stalls_ms.items())
        say(f"{one.number:4}  {one.kind:5}  {one.tier:6} {one.victim:2}  longest stalls  {stalls}")

    with tempfile.TemporaryDirectory(prefix="weir-chaos-") as name, stop_as_by_ctrl_c():
        result = measure(settings, data or Path(name), tell)
    if as_json:
        print_measured("weir.chaos.tiers/1", settings, msgspec.to_builtins(result))
    else:
        for example in result.examples:
            say(example)
        say(
            f"{result.messages:,} messages, {len(result.readings) - 2} readers and a cluster, "
            f"{result.moves + result.cluster_moves:,} moves: {result.lost} lost, {result.repeated} "
            f"repeated, {result.out_of_order} out of order, {result.differing} differing; a city "
            f"whose upper was struck stalled for {result.city_stall_median_ms:,.0f} ms at the "
            f"median, {result.city_stall_ms:,.0f} ms at most"
        )
    if not result.clean:
        raise typer.Exit(1)


@_verb("watch")
def _watch(
    wanted: Wanted,
    url: Annotated[str, typer.Option(envvar="WEIR_URL", help="A set that runs elsewhere.")],
    command: Annotated[
        str,
        typer.Option(
            help='The command that causes the fault, as in "ssh a systemctl kill -s KILL weir".'
        ),
    ] = "",
    undo: Annotated[
        str, typer.Option(help="The command that ends the fault, if it does not end by itself.")
    ] = "",
    seconds: Annotated[float, typer.Option(help="How long to watch after each command.")] = 10.0,
) -> None:
    """Load a set that runs elsewhere, while a command or you cause the faults.

    It makes a topic of its own there, and deletes it if nothing was wrong. It does
    not know which node was struck.
    """
    from weir.client.arguments import parse_url
    from weir_lab.bench.faults.chaos.faults import ByCommand
    from weir_lab.bench.faults.chaos.rounds import Where

    try:
        places = parse_url(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    where = Where(url, places, f"chaos-{secrets.token_hex(4)}", passing=True)
    fault = ByCommand(command, undo, seconds)
    settings = _settings(wanted, fault.name)
    _tell(wanted, fault, len(places), lambda tell: _rounds(where, fault, settings, tell))


def _settings(wanted: Wanted, name: str) -> Settings:
    from weir_lab.bench.faults.chaos.rounds import Settings

    settings = Settings(wanted.times, wanted.rate, wanted.size, wanted.devices, wanted.calm)
    try:
        settings.check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"chaos {name}") from None
    return settings


def _strike(
    wanted: Wanted, data: Path | None, faults: Callable[[NodeSet], Fault],
    berths: list[Berth] | None = None,
) -> None:  # fmt: skip
    """Start a set, strike it, and tell."""
    from weir.testing.nodes import READY, NodeSet, Patient
    from weir_lab.bench.faults.chaos.rounds import Where

    # A network of the nodes' own has nobody else in it.
    given = {**READY, "WEIR__ACCESS__INSECURE": "true"} if berths else READY
    with tempfile.TemporaryDirectory(prefix="weir-chaos-") as name:
        nodes = NodeSet(data or Path(name), _NODES, 1, berths=berths or (), settings=given)
        fault = faults(nodes)
        settings = _settings(wanted, fault.name)
        where = Where(nodes.url, [(member.host, member.port) for member in nodes.members])

        def run(tell: Callable[..., None]) -> Result:
            try:
                nodes.start(Patient())
                return _rounds(where, fault, settings, tell)
            finally:
                nodes.stop()

        _tell(wanted, fault, _NODES, run)


def _rounds(where: Where, fault: Fault, settings: Settings, tell: Callable[..., None]) -> Result:
    from weir_lab.bench.faults.chaos.rounds import run

    return asyncio.run(run(where, fault, settings, tell))


def _tell(
    wanted: Wanted, fault: Fault, nodes: int, run: Callable[[Callable[..., None]], Result]
) -> None:
    """Run the rounds, each told as it ends, and then what came of all."""
    import msgspec

    from weir_lab.bench.faults.chaos.picture import heading, line, summary
    from weir_lab.bench.faults.chaos.rounds import COLUMNS
    from weir_lab.cli.measured import print_measured

    rate, say = wanted.rate, _say if wanted.as_json else print
    for text in heading(fault.name, nodes, rate, fault.drawn_s * 1e3 / (COLUMNS * 5 // 6)):
        say(text)
    with stop_as_by_ctrl_c():
        result = run(lambda one: say(line(one, rate)))
    if wanted.as_json:
        print_measured(_SCHEMA, _settings(wanted, fault.name), msgspec.to_builtins(result))
    else:
        print("\n".join(summary(result)))
    if not result.clean:
        raise typer.Exit(1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
