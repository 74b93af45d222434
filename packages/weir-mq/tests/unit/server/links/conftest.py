"""Drivers over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from rigs.linked_nodes import Node, bounded, dial, made_hello, made_own, nodes_running
from weir.host.links import ShardInfo
from weir.protocol import link
from weir.protocol.link import LinkHello


@pytest.fixture
def make_node() -> Callable[[ShardInfo], Node]:
    """Return what makes a node that does not listen yet."""
    return Node


@pytest.fixture
def running() -> Callable[..., AbstractAsyncContextManager[list[Node]]]:
    """`async with running(own(1), own(2)) as (one, two)`: nodes that listen, and know of nobody."""
    return nodes_running


@pytest.fixture
def own() -> Callable[..., ShardInfo]:
    """Return what makes an `Own`: (node, shard, shards, logs, system)."""
    return made_own


@pytest.fixture
def hello() -> Callable[..., LinkHello]:
    """Return what makes the hello of node 2 to node 1, with changes."""
    return made_hello


@pytest.fixture
def greet() -> Callable[..., Awaitable[tuple[link.LinkAnswer, socket.socket]]]:
    """Return what dials a port by hand, and returns the answer and the connection."""
    return dial


@pytest.fixture
def run() -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Return what runs a test's body in a loop, bounded in time."""
    return bounded
