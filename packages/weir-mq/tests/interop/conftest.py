"""What tests of nodes of several shard processes are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rigs.shard_processes import land_on, pids_of
from weir.spark.blocking_client import BlockingClient
from weir.testing.nodes import Node

Pids = Callable[[Node], list[int]]

Landing = Callable[[Node, int], BlockingClient]


@pytest.fixture
def shard_pids() -> Pids:
    """What returns the processes of a node's shards, the oldest first."""
    return pids_of


@pytest.fixture
def landing() -> Landing:
    """What connects to the shared port such that a certain shard is met."""
    return land_on
