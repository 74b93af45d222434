"""What tests of nodes of several shard processes share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from weir.spark.blocking_client import BlockingClient
from weir.testing.nodes import Node


def pids_of(node: Node) -> list[int]:
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in children.split()]


def land_on(node: Node, shard: int) -> BlockingClient:
    """Connect while the others stand still for a moment: the system deals connections out."""
    others = [pid for number, pid in enumerate(pids_of(node)) if number != shard]
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        client = BlockingClient(node.host, node.port, 15)
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)
    assert client.welcome.shard == shard
    return client
