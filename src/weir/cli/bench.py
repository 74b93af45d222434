"""`weir bench`: measure on this machine, and check every message while at it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weir.bench.timeliness import Result, Settings

app = typer.Typer(
    name="bench",
    help="Measure on this machine: on a node of its own, every message checked.",
)


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure on this machine: on a node of its own, every message checked."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def timeliness(
    messages: Annotated[int, typer.Option(help="How many messages in all.")] = 4_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    producers: Annotated[int, typer.Option(help="Producers, each with its connection.")] = 1,
    partitions: Annotated[int, typer.Option(help="Partitions, no more than producers.")] = 1,
    deadline: Annotated[str, typer.Option(help="Give up after this long, as in 90s or 5m.")] = "5m",
    folder: Annotated[
        str | None,
        typer.Option(help="Make the node's folder in here. [default: where temporary files go]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time from the first send to the last receive: many producers, one consumer.

    A node is started on a fresh folder and removed afterwards; it syncs before it confirms, as
    always. Exit code 1 if a message was lost, repeated, reordered or changed.
    """
    from weir.cli.output import print_json, progress
    from weir.client.duration import seconds
    from weir.errors import WeirError

    try:
        from weir.bench.timeliness import Settings, measure
    except ModuleNotFoundError as error:
        raise WeirError(
            f"benchmarks need {error.name}, which is not installed: pip install 'weir-mq[bench]'"
        ) from None
    try:
        settings = Settings(messages, size, producers, partitions, seconds(deadline), folder)
        settings.check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="bench timeliness") from None
    with _stop_as_by_ctrl_c(), progress("received", messages) as show:
        result = measure(settings, show)
    if as_json:
        import msgspec

        print_json("weir.bench.timeliness/1", settings, msgspec.structs.asdict(result))
    else:
        _print(settings, result)
    if not result.clean:
        raise typer.Exit(1)


@app.command()
def codec(
    messages: Annotated[int, typer.Option(min=1, help="Messages in the batch.")] = 1_000,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value.")] = 100,
    mixed: Annotated[bool, typer.Option(help="Values of many widths, not of one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time to pack, open, check and split one batch, hash included."""
    import msgspec

    from weir.bench.codec import Settings, measure
    from weir.cli.output import print_json, print_table

    settings = Settings(messages, size, mixed)
    result = measure(settings)
    if as_json:
        print_json("weir.bench.codec/1", settings, msgspec.structs.asdict(result))
        return
    print(f"a batch of {messages:,} messages of {size} bytes takes {result.batch_bytes:,} bytes")
    print_table(
        ("ENCODE ns/msg", "DECODE ns/msg", "OPEN us", "OPEN+CHECK us"),
        [(result.encode_ns, result.decode_ns, result.open_us, result.check_us)],
    )


def _print(settings: Settings, result: Result) -> None:
    from weir.cli.output import hint, print_table

    many = "producers" if settings.producers > 1 else "producer"
    print(
        f"{result.messages:,} messages of {settings.size} bytes, {settings.producers:,} {many}: "
        f"{result.seconds:.2f} s from the first send to the last receive"
    )
    print_table(
        ("MESSAGES/S", "MB/S", "LOST", "REPEATED", "REORDERED", "CORRUPT"),
        [
            (
                result.messages_per_s,
                result.bytes / result.seconds / 1e6,
                result.lost,
                result.repeated,
                result.reordered,
                result.corrupt,
            )
        ],
    )
    cpu = result.cpu_s
    print(
        f"CPU seconds: producers {cpu.producers:.2f}, consumer {cpu.consumer:.2f}"
        + (f", server {cpu.server:.2f}" if cpu.server is not None else "")
    )
    if result.filesystem == "tmpfs":
        print(
            "the node's folder lay in memory (tmpfs), where no sync costs: give --folder on a disk"
        )
    hint("Next: the same with --producers 50, or --json to keep it")


@contextmanager
def _stop_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what it started is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
