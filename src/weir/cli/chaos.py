"""`weir chaos`: what clients see of a set whose nodes are killed, paused or cut off."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.bench_runs import Json, stop_as_by_ctrl_c

if TYPE_CHECKING:
    from weir.bench.chaos.faults import Fault
    from weir.bench.chaos.nets import Networks
    from weir.bench.chaos.rounds import Result

app = typer.Typer(
    name="chaos",
    help="Kill, pause and cut off nodes under load; lost and repeated come from clients' ledgers.",
    no_args_is_help=True,
)

_SCHEMA = "weir.chaos/1"

Times = Annotated[int, typer.Option(min=1, help="How many rounds.")]
Rate = Annotated[float, typer.Option(help="Messages a second, whatever comes back.")]
Size = Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")]
Devices = Annotated[int, typer.Option(help="Devices that send beside the producer.")]
Calm = Annotated[float, typer.Option(help="Seconds of load before each strike.")]
Data = Annotated[
    Path | None, typer.Option(help="Keep what the nodes write here. [default: it is removed]")
]


@app.command("kill-leader")
def kill_leader(
    times: Times = 10, rate: Rate = 1_000, size: Size = 100, devices: Devices = 2,
    down: Annotated[float, typer.Option(help="Seconds until it is started again.")] = 2.0,
    calm: Calm = 1.0, data: Data = None, as_json: Json = False,
) -> None:  # fmt: skip
    """kill -9 of the node that leads; it is started again, and the next round comes."""
    from weir.bench.chaos.faults import Killed

    _run(Killed(True, down), times, rate, size, devices, calm, data, as_json)


@app.command("kill-follower")
def kill_follower(
    times: Times = 10, rate: Rate = 1_000, size: Size = 100, devices: Devices = 2,
    down: Annotated[float, typer.Option(help="Seconds until it is started again.")] = 2.0,
    calm: Calm = 1.0, data: Data = None, as_json: Json = False,
) -> None:  # fmt: skip
    """kill -9 of a node that follows: nobody should notice."""
    from weir.bench.chaos.faults import Killed

    _run(Killed(False, down), times, rate, size, devices, calm, data, as_json)


@app.command("pause-leader")
def pause_leader(
    times: Times = 10, rate: Rate = 1_000, size: Size = 100, devices: Devices = 2,
    seconds: Annotated[float, typer.Option(help="How long it stands still.")] = 10.0,
    calm: Calm = 1.0, data: Data = None, as_json: Json = False,
) -> None:  # fmt: skip
    """SIGSTOP of the node that leads, and SIGCONT; what it says when it wakes must not be stale."""
    from weir.bench.chaos.faults import Paused

    _run(Paused(seconds), times, rate, size, devices, calm, data, as_json)


@app.command("partition")
def partition(
    times: Times = 10, rate: Rate = 1_000, size: Size = 100, devices: Devices = 2,
    seconds: Annotated[float, typer.Option(help="How long it is cut off.")] = 5.0,
    calm: Calm = 1.0, data: Data = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Cut the node that leads off from the others, not from clients.

    Each node gets a network namespace: that needs root, or a kernel that lets users make them.
    """
    from weir.bench.chaos.faults import CutOff
    from weir.bench.chaos.nets import Networks, enter

    enter(sys.argv[1:])
    networks = Networks(_NODES)
    try:
        fault = CutOff(networks, seconds)
        _run(fault, times, rate, size, devices, calm, data, as_json, networks)
    finally:
        networks.close()


@app.command("restart-all")
def restart_all(
    times: Times = 10, rate: Rate = 1_000, size: Size = 100, devices: Devices = 2,
    calm: Calm = 1.0, data: Data = None, as_json: Json = False,
) -> None:  # fmt: skip
    """kill -9 of all nodes at once, and a restart of all."""
    from weir.bench.chaos.faults import AllKilled

    _run(AllKilled(), times, rate, size, devices, calm, data, as_json)


_NODES = 3


def _run(
    fault: Fault, times: int, rate: float, size: int, devices: int, calm: float,
    data: Path | None, as_json: bool, networks: Networks | None = None,
) -> None:  # fmt: skip
    import msgspec

    from weir.bench.chaos.picture import heading, line, summary
    from weir.bench.chaos.rounds import COLUMNS, Settings
    from weir.cli.output import print_json

    settings = Settings(times, rate, size, devices, calm)
    try:
        settings.check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"chaos {fault.name}") from None
    say = _say if as_json else print
    for text in heading(fault.name, _NODES, rate, fault.drawn_s * 1e3 / (COLUMNS * 5 // 6)):
        say(text)
    with stop_as_by_ctrl_c():
        result = _struck(fault, settings, data, networks, lambda one: say(line(one, rate)))
    if as_json:
        print_json(_SCHEMA, settings, msgspec.to_builtins(result))
    else:
        print("\n".join(summary(result)))
    if not result.clean:
        raise typer.Exit(1)


def _struck(
    fault: Fault, settings: object, data: Path | None, networks: Networks | None,
    tell: Callable[..., None],
) -> Result:  # fmt: skip
    from weir.bench.chaos.rounds import Settings, run
    from weir.bench.node_set import NodeSet, Patient

    assert isinstance(settings, Settings)
    berths = networks.berths if networks else ()
    with tempfile.TemporaryDirectory(prefix="weir-chaos-") as name:
        nodes = NodeSet(data or Path(name), _NODES, 1, berths=berths)
        try:
            nodes.start(Patient())
            return asyncio.run(run(nodes, fault, settings, tell))
        finally:
            nodes.stop()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
