"""What tests of nodes of several shard processes share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.spark.blocking_client import BlockingClient
from weir.testing.nodes import Node

Pids = Callable[[Node], list[int]]
Landing = Callable[[Node, int], BlockingClient]


@pytest.fixture
def shard_pids() -> Pids:
    """What returns the processes of a node's shards, the oldest first."""
    return _pids


@pytest.fixture
def landing() -> Landing:
    """What connects to the shared port such that a certain shard is met."""
    return _landing


def _pids(node: Node) -> list[int]:
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in children.split()]


def _landing(node: Node, shard: int) -> BlockingClient:
    """Connect while the others stand still for a moment: the system deals connections out."""
    others = [pid for number, pid in enumerate(_pids(node)) if number != shard]
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        client = BlockingClient(node.host, node.port, 15)
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)
    assert client.welcome.shard == shard
    return client
