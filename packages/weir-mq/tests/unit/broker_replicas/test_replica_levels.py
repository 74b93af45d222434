"""The format level of a set is raised once every node supports it, and never below what is written.

Nodes of later releases are played by this one, which is told that it supports more.
"""

from __future__ import annotations

from typing import Any

import pytest

from rigs.shards import sessions_of
from weir.broker.api import events as ev
from weir.errors import Halted, LevelTooHigh
from weir.model.limits import FORMAT_LEVEL, FORMAT_LEVEL_FIRST
from weir.model.limits import FORMAT_LEVEL_ACCESS as ACCESS
from weir.protocol.client.messages import CreateTopic, Hello
from weir.protocol.client.nodes import ListNodes, NodeList, RaiseLevel

#: Of the release that comes next.
NEW = FORMAT_LEVEL + 1
HOST = "192.0.2.7"


def levels(trio: Any) -> list[int]:
    reply = trio.told(ListNodes(), 0)
    assert isinstance(reply, NodeList)
    return [row.level for row in reply.nodes]


def upgrade(trio: Any, node: int, level: int) -> None:
    """Let one node run another release."""
    trio[node].kill()
    trio[node].settings = {**trio[node].settings, "level": level}
    trio[node].boot()
    trio.until(lambda: levels(trio)[node - 1] == level, "the registry never hears of it")


def test_the_level_waits_for_the_last_node(trio: Any) -> None:
    trio.leader()
    trio.until(lambda: levels(trio) == [FORMAT_LEVEL] * 3)
    upgrade(trio, 1, NEW)
    upgrade(trio, 2, NEW)
    refused = trio.told(RaiseLevel(NEW), 0)
    assert (refused.code, refused.detail) == (LevelTooHigh.code, FORMAT_LEVEL)
    assert f"node 3 supports format level {FORMAT_LEVEL}" in refused.message
    upgrade(trio, 3, NEW + 1)
    raised = trio.told(RaiseLevel(), 0)
    assert isinstance(raised, NodeList)
    assert raised.level == NEW


def test_a_new_set_writes_the_first_level_until_all_its_nodes_are_known_to_read_more(
    trio: Any,
) -> None:
    """A founder of a later release raised it, before others of an earlier one had said a word."""
    trio.leader()
    trio.until(lambda: levels(trio) == [FORMAT_LEVEL] * 3)
    assert trio.told(ListNodes(), 0).level == FORMAT_LEVEL_FIRST
    assert trio.told(RaiseLevel(), 0).level == FORMAT_LEVEL


@pytest.mark.parametrize(("supported", "address"), [(FORMAT_LEVEL, HOST), (ACCESS - 1, "")])
def test_a_peer_is_told_with_its_address_once_the_release_of_the_other_node_takes_it(
    trio: Any, supported: int, address: str
) -> None:
    """A node that had just started, and had not heard of the level yet, left the address out: it
    was missing in the audit topic as long as the connection lasted.
    """
    for node in trio.live():  # before they link
        node.settings = {**node.settings, "level": supported}
    leader = trio.leader()
    trio.until(lambda: all(node.shard.ready for node in trio.live()))
    follower = next(node for node in trio.live() if node is not leader)
    follower.replies[7] = []
    follower.handle(ev.Opened(7, address=HOST))
    follower.ask(Hello("test"), 7)
    created = follower.ask(CreateTopic("t", 1), 7)
    trio.until(lambda: follower.reply_to(created, 7) is not None)
    assert trio.told(ListNodes(), 0).level == FORMAT_LEVEL_FIRST
    sessions = sessions_of(leader.shard).values()
    told = [one.address for one in sessions if one.foreign and not one.is_shard]
    assert told == [address]


def test_a_node_that_cannot_read_what_is_written_does_not_serve(trio: Any) -> None:
    trio.until(lambda: levels(trio) == [FORMAT_LEVEL] * 3)
    for node in (1, 2, 3):
        upgrade(trio, node, NEW)
    assert trio.told(RaiseLevel(NEW), 0).level == NEW
    trio.run(500)
    trio[3].kill()
    trio[3].settings = {**trio[3].settings, "level": FORMAT_LEVEL}
    trio[3].boot()
    with pytest.raises(Halted, match=f"reads up to {FORMAT_LEVEL}: upgrade this node"):
        trio.run(5_000)
