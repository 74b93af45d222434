"""One node of a set, alone at its address: on a machine of its own, or in a network namespace."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from unittest import mock

from weir.broker.identity import Member
from weir.server.config import (
    Config,
    LogConfig,
    MemoryConfig,
    MetricsConfig,
    NodeConfig,
    StatusConfig,
)
from weir.server.folder import NodeFolder, Part
from weir.server.main import run
from weir.server.status import configure

#: What it says once clients may connect.
UP = "the node is up"
PORT = 6800
FIGURES_PORT = 9680


def main(arguments: Sequence[str] | None = None) -> None:
    """Found the node if it is new, and serve until the lights go out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--hosts", required=True, help="of all nodes, in their order")
    parser.add_argument("--system", type=int, required=True)
    parser.add_argument("--budget-mib", type=int, default=32)
    parser.add_argument("--never-sync", action="store_true")
    wanted = parser.parse_args(arguments)
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
    )
    configure(config.status)
    with ExitStack() as stack:
        if wanted.never_sync:
            stack.enter_context(mock.patch.object(os, "fdatasync", _lie))
        run(config, lambda host, port: print(UP, flush=True))


def _lie(handle: int) -> None:
    """Say that it is durable: the planted fault that a power cut must bring to light."""


if __name__ == "__main__":
    main()
