"""What the verbs of `weir bench` share: list arguments, runs, and how they end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer

from weir.errors import WeirError

S = TypeVar("S")

Folder = Annotated[
    str | None,
    typer.Option(help="Create the node's folder in here. [default: where temporary files go]"),
]
Rest = Annotated[str, typer.Option(help="Wait at most this long until the disk is idle.")]
Turns = Annotated[
    int, typer.Option(help="Runs of each side, by turns: odd, for the one in the middle counts.")
]
Replicas = Annotated[
    int, typer.Option(help="How many nodes, one process each, hold and sync everything.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the figures into this SVG file.")]
Record = Annotated[
    Path | None,
    typer.Option(help="Append every run with its samples to this file, one line of JSON each."),
]


def several(text: str, name: str) -> list[int]:
    """Return the numbers of a list argument, as in 1,50,200. Raises `BadParameter`."""
    try:
        numbers = [int(word.replace("_", "")) for word in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"--{name}: {text!r} is no number, and no list such as 1,50,200"
        ) from None
    if min(numbers) < 1:
        raise typer.BadParameter(f"--{name}: give numbers of 1 or more")
    return numbers


@contextmanager
def usage(verb: str) -> Iterator[None]:
    """Turn what cannot be measured into wrong usage, and what is not installed into advice."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"bench {verb}") from None
    except ModuleNotFoundError as error:
        raise WeirError(
            f"benchmarks need {error.name}, which is not installed: pip install weir-lab"
        ) from None


def say(text: str) -> None:
    """Tell on stderr how far it is."""
    print(text, file=sys.stderr, flush=True)


def finish(
    schema: str,
    settings: Sequence[object],
    results: Sequence[Any],
    key: str,
    *,
    most: bool,
    as_json: bool,
    show: Callable[[Any], None],
) -> None:
    """Print all runs, the worst one on top, and end with code 1 if any was not clean."""
    import msgspec

    from weir_lab.bench.harness.runs import as_one
    from weir_lab.cli.measured import print_measured

    if as_json:
        found = [msgspec.to_builtins(result) for result in results]
        print_measured(
            schema, settings[0] if len(settings) == 1 else settings, as_one(found, key, most)
        )
    else:
        for result in results:
            show(result)
    if not all(getattr(result, "clean", True) for result in results):
        raise typer.Exit(1)


@contextmanager
def stop_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what it started is stopped; also where a
    shell runs it in the background, and lets it ignore Ctrl-C.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    by_ctrl_c = signal.getsignal(signal.SIGINT)
    if by_ctrl_c is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if by_ctrl_c is signal.SIG_IGN:
            signal.signal(signal.SIGINT, by_ctrl_c)
