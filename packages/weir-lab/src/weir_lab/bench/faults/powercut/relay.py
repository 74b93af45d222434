"""A relay of a tier, alone on a machine of its own."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from weir.client.arguments import parse_url
from weir.relay_node.host import RelayConfig
from weir.relay_node.serve import run_until_signal
from weir.server.interpreter import run_loop
from weir_lab.bench.harness.member import PORT

#: What it says once clients may connect.
UP = "the relay is up"


def main(arguments: Sequence[str] | None = None) -> None:
    """Relay from the core to clients until the lights go out, as `weir relay` does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--core", required=True, help="as in weir://HOST:PORT")
    parser.add_argument("--data", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--set", type=int, required=True, dest="brokerset")
    parser.add_argument("--node", type=int, required=True)
    wanted = parser.parse_args(arguments)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    # It has no uppers: the topology says whom it pulls from.
    config = RelayConfig(parse_url(wanted.core), wanted.brokerset, wanted.node)
    at = wanted.host, PORT
    run_loop(run_until_signal(config, Path(wanted.data), at, lambda _: print(UP, flush=True)))


if __name__ == "__main__":
    main()
