"""One node of a set, alone at its address: on a machine of its own, or in a network namespace."""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from unittest import mock

from weir.broker.api.settings import Member
from weir.server.config import (
    AccessConfig,
    Config,
    LogConfig,
    MemoryConfig,
    MetricsConfig,
    NodeConfig,
    StatusConfig,
)
from weir.server.disk.node_folder import NodeFolder, Part
from weir.server.processes.node import run
from weir.server.status import configure

#: What it says once clients may connect.
UP = "the node is up"
PORT = 6800
FIGURES_PORT = 9680
#: Where a machine whose own clock is not to be trusted asks for the time.
CLOCK_PORT = 9681
_CLOCK_BYTES = 8
_CLOCK_SECONDS = 20.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Found the node if it is new, and serve until the lights go out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--hosts", required=True, help="of all nodes, in their order")
    parser.add_argument("--system", type=int, required=True)
    parser.add_argument("--budget-mib", type=int, default=66)
    parser.add_argument("--never-sync", action="store_true")
    parser.add_argument("--clock", help="the host to set this machine's clock by")
    wanted = parser.parse_args(arguments)
    if wanted.clock:
        _set_clock(wanted.clock)
    hosts = wanted.hosts.split(",")
    members = tuple(Member(number, host, PORT) for number, host in enumerate(hosts, 1))
    part = Part(wanted.node, members if len(members) > 1 else (), wanted.system)
    NodeFolder(wanted.data).found(1, None, part)
    host = hosts[wanted.node - 1]
    config = Config(
        node=NodeConfig(data=wanted.data, host=host, port=PORT, shards=1),
        memory=MemoryConfig(budget_mib=wanted.budget_mib, cache_mib=4),
        log=LogConfig(segment_mib=32, spares=0),
        metrics=MetricsConfig(listen=f"{host}:{FIGURES_PORT}"),
        status=StatusConfig(level="warning"),
        # Its network has nobody else in it.
        access=AccessConfig(insecure=True),
    )
    configure(config.status)
    with ExitStack() as stack:
        if wanted.never_sync:
            stack.enter_context(mock.patch.object(os, "fdatasync", _lie))
        run(config, lambda host, port: print(UP, flush=True))


def _set_clock(host: str) -> None:
    with socket.create_connection((host, CLOCK_PORT), _CLOCK_SECONDS) as connection:
        now = int.from_bytes(connection.recv(_CLOCK_BYTES), "big")
    time.clock_settime_ns(time.CLOCK_REALTIME, now)


def time_told() -> bytes:
    """Return the answer to a connection to `CLOCK_PORT`."""
    return time.time_ns().to_bytes(_CLOCK_BYTES, "big")


def _lie(handle: int) -> None:
    """Say that it is durable: the planted fault that a power cut must bring to light."""


if __name__ == "__main__":
    main()
