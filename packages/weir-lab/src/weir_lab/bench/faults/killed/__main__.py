"""`python -m weir_lab.bench.faults.killed`: kill handlers and leaders, and count all effects."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

import msgspec

from weir.errors import WeirError
from weir_lab.bench.faults.killed.run import Result, Shape, measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if each message had one effect, 1 if not, 2 if it could not be tried."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.killed", description=__doc__
    )
    for name in Shape.__struct_fields__:
        value = getattr(Shape(), name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--json", action="store_true")
    wanted = vars(parser.parse_args(arguments))
    as_json = wanted.pop("json")
    try:
        result = measure(Shape(**wanted))
    except (WeirError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if as_json:
        print(msgspec.json.encode(result).decode())
    else:
        print(told(result))
    return 0 if result.clean else 1


def told(result: Result) -> str:
    """Return the figures as a person reads them."""
    return "\n".join((
        f"{result.messages:,} messages, {result.consumers_seen} consumers in "
        f"{result.shape.processes} processes, {result.seconds:.0f} s",
        f"killed: {result.handlers_killed} processes, {result.leaders_killed} times a leader of "
        f"{result.shape.nodes}",
        f"with the inbox ({result.database}): {result.lost} lost, {result.repeated} repeated",
        f"without: {result.never_begun} lost, {result.begun_again} repeated",
        f"a consumer began {result.least:.2f} to {result.most:.2f} of the mean",
    ))  # fmt: skip


if __name__ == "__main__":
    # A signal that ends this process must end its children, which would run without end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
