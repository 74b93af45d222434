"""A shard process that stands still, and goes on before it is killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.errors import Unavailable
from weir.protocol.client import messages as m
from weir.spark.blocking_client import BlockingClient
from weir.testing.nodes import Node, running_node

Pids = Callable[[Node], list[int]]
Landing = Callable[[Node, int], BlockingClient]


def test_a_shard_that_stands_still_is_left_and_joined_again(
    tmp_path: Path, landing: Landing, shard_pids: Pids
) -> None:
    """The other serves its own and the registry, and refuses what is not its; then all goes on."""
    small = {"segment_mib": 32, "spares": 0, "budget_mib": 66, "cache_mib": 4}
    with (
        running_node(tmp_path, shards=2, logs=2, **small) as node,
        landing(node, 0) as client,
    ):
        info = client.request(m.CreateTopic("t", 2))
        assert isinstance(info, m.TopicInfo)
        far = next(a for a in info.addresses if a.shard == 1)
        near = next(a for a in info.addresses if a.shard == 0)
        pid = shard_pids(node)[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert isinstance(client.request(m.OpenProducer()), m.ProducerGrant)
            with pytest.raises(Unavailable):  # it waits until the shard is left
                client.request(m.Positions(far))
            assert isinstance(client.request(m.CreateTopic("u", 2)), m.TopicInfo)
            assert isinstance(client.request(m.Positions(near)), m.PositionsReply)
            for _ in range(10):  # whoever comes is not dealt out to the one that stands still
                with BlockingClient(node.host, node.port, 5) as late:
                    assert late.welcome.shard == 0
        finally:
            os.kill(pid, signal.SIGCONT)
        assert isinstance(answered(client, m.Positions(far)), m.PositionsReply)
        assert shard_pids(node)[1] == pid
        with landing(node, 1) as there:
            assert isinstance(answered(there, m.DescribeTopic("u")), m.TopicInfo)
            assert isinstance(there.request(m.Positions(near)), m.PositionsReply)


def answered(client: BlockingClient, request: m.Request) -> m.Reply:
    """Ask until a shard that stood still has met the other again, 20 s at most."""
    until = time.monotonic() + 20
    while True:
        try:
            return client.request(request)
        except Unavailable:
            assert time.monotonic() < until


def test_connections_are_dealt_out_to_all_shards(tmp_path: Path) -> None:
    """Also those that come one after the other, when all have time: no shard is left without."""
    small = {"segment_mib": 32, "spares": 0, "budget_mib": 66, "cache_mib": 4}
    met = Counter[int]()
    with running_node(tmp_path, shards=3, logs=3, **small) as node:
        for _ in range(120):
            with BlockingClient(node.host, node.port, 15) as client:
                met[client.welcome.shard] += 1
    assert len(met) == 3
