"""What the core keeps for relays of the topology: within caps, whoever leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rigs.broker_rig import SYSTEM
from rigs.shards import catalog_of
from rigs.topologies import row
from weir.broker.api import events as ev
from weir.broker.partition import relay_pulls
from weir.broker.records.partition import RelayHold
from weir.broker.records.registry import TopologyApplied
from weir.broker.records.snapshots import pack
from weir.broker.state.state import PartitionState
from weir.model.ids import topic_of
from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m
from weir.relay.messages import AnyMessage, OffsetOutOfRange, Pull, decode_message, encode_message
from weir.topology.sets import Caps, SetNode, SetRow, Topology


def request(info: m.TopicInfo, offset: int, node: int, through: int) -> m.AskRelay:
    """Return the pull of a node of set 4."""
    address = info.addresses[0]
    topic = topic_of(address.group)
    pull = Pull(SYSTEM, 4, node, topic, 0, 7, 0, offset, 1, None, 1, through)
    return m.AskRelay(address, b"".join(encode_message(pull)))


def told(rig: Any, info: m.TopicInfo, offset: int, node: int = 8) -> AnyMessage:
    """Pull what comes at an offset, and need all from there on."""
    reply = rig.answer(1, request(info, offset, node, offset))
    assert isinstance(reply, m.RelayTold), reply
    return decode_message(b"".join(reply.message))[0]


@pytest.fixture
def kept(make_rig: Callable[..., Any], make_publisher: Any) -> Any:
    """A node that looks at retention with every tick, and a topic of which nothing is kept for its
    age; with a topology in which relays 8 and 9 of set 4 are.
    """
    rig = make_rig(retention_every_ms=1)
    info = rig.answer(
        rig.connect(), m.CreateTopic("t", settings=SettingsChange(retention_ms=1_000))
    )
    publisher = make_publisher(rig, info)
    for number in range(6):
        publisher.ask(b"%d" % number + bytes(999))
    be_known(rig, Caps(hold_seconds=3_600))
    rig.time.pass_ms(1_000)
    return rig, info, publisher


def be_known(rig: Any, caps: Caps, *nodes: int) -> None:
    """Apply a topology of a core set and an access set."""
    version = catalog_of(rig.shard).topology.version + 1
    sets = row(0), SetRow(4, "far", "access", 1, caps=caps, upper=(0,), nodes=tuple(
        SetNode(number, "10.0.0.1", 6800 + number) for number in nodes or (8, 9)
    ))  # fmt: skip
    catalog_of(rig.shard).topology.apply(TopologyApplied(version, Topology(0, sets)))


def look(rig: Any, ms: int = 50) -> None:
    rig.tick(ms)
    rig.settle()
    rig.tick(50)
    rig.settle()


def start_of(rig: Any, info: Any) -> int:
    reply = rig.answer(1, m.Positions(info.addresses[0]))
    assert isinstance(reply, m.PositionsReply)
    return reply.start


def state_of(rig: Any, info: Any) -> Any:
    return rig.shard.topics.find(info.addresses[0].group).state


def stored(rig: Any, info: Any) -> tuple[RelayHold, ...]:
    """Return the holds of which an entry says."""
    found: tuple[RelayHold, ...] = state_of(rig, info).membership.relay_holds
    return found


def test_nothing_goes_that_a_relay_needs(kept: Any) -> None:
    rig, info, _ = kept
    told(rig, info, 2)
    told(rig, info, 4, node=9)
    look(rig, relay_pulls.HEARD_WITHIN_MS)
    assert start_of(rig, info) == 2
    told(rig, info, 5)
    look(rig)
    assert start_of(rig, info) == 4
    told(rig, info, 5, node=9)
    look(rig)
    assert start_of(rig, info) == 5


def test_a_new_leader_lets_nothing_go_before_it_has_heard_of_relays(kept: Any) -> None:
    rig, info, _ = kept
    look(rig, relay_pulls.HEARD_WITHIN_MS - 2_000)
    assert start_of(rig, info) == 0
    look(rig, 2_000)
    assert start_of(rig, info) == 6


def test_holds_are_entries_and_outlive_the_leader(kept: Any) -> None:
    rig, info, _ = kept
    told(rig, info, 2)
    look(rig)
    assert [(one.brokerset, one.node, one.offset) for one in stored(rig, info)] == [(4, 8, 2)]
    rig.disk.crash()
    rig.boot()
    rig.connect()
    be_known(rig, Caps(hold_seconds=3_600))
    assert stored(rig, info)[0][:3] == (4, 8, 2)
    look(rig, relay_pulls.HEARD_WITHIN_MS)
    assert start_of(rig, info) == 2


def test_a_relay_is_waited_for_for_a_while_whoever_leads(kept: Any) -> None:
    rig, info, publisher = kept
    told(rig, info, 2)
    look(rig, 1_800_000)
    publisher.ask(b"more")
    told(rig, info, 4, node=9)  # so that an entry says for how long the other one was silent
    look(rig)
    assert [one.silent_ms >= 1_800_000 for one in stored(rig, info)] == [
        True,
        False,
    ]
    rig.boot()
    rig.connect()
    be_known(rig, Caps(hold_seconds=3_600))
    look(rig, 1_700_000)
    assert start_of(rig, info) == 2
    look(rig, 200_000)
    assert start_of(rig, info) == 4


def test_more_than_the_cap_is_not_kept_and_that_is_counted(kept: Any) -> None:
    rig, info, _ = kept
    be_known(rig, Caps(hold_bytes=2_500))
    told(rig, info, 1)
    look(rig, relay_pulls.HEARD_WITHIN_MS)
    assert start_of(rig, info) == 3
    assert rig.shard.counts.partition(info.addresses[0].group).holds_passed == 1
    refused = told(rig, info, 1)
    assert isinstance(refused, OffsetOutOfRange)
    assert refused.start == 3


def test_what_the_topology_has_no_more_keeps_nothing(kept: Any) -> None:
    rig, info, _ = kept
    told(rig, info, 2)
    told(rig, info, 4, node=9)
    look(rig, relay_pulls.HEARD_WITHIN_MS)
    assert start_of(rig, info) == 2
    be_known(rig, Caps(), 9)
    look(rig)
    assert start_of(rig, info) == 4
    assert [one.node for one in stored(rig, info)] == [9]


def test_a_relay_that_disconnects_has_its_hold_stored(kept: Any) -> None:
    rig, info, _ = kept
    told(rig, info, 2)
    look(rig)
    session = rig.connect(2)
    rig.ask(session, request(info, 6, 8, 5))
    look(rig)
    assert stored(rig, info)[0].offset == 2, "it is connected"
    rig.handle(ev.Closed(session))
    look(rig)
    assert stored(rig, info)[0].offset == 5


def test_without_a_topology_relays_keep_nothing(
    make_rig: Callable[..., Any], make_publisher: Any
) -> None:
    rig = make_rig(retention_every_ms=1)
    info = rig.answer(
        rig.connect(), m.CreateTopic("t", settings=SettingsChange(retention_ms=1_000))
    )
    make_publisher(rig, info).ask(b"1")
    told(rig, info, 0)
    look(rig, 2_000)
    assert start_of(rig, info) == 1
    assert stored(rig, info) == ()


def test_holds_are_in_checkpoints_and_the_state_without_any_is_as_before(kept: Any) -> None:
    rig, info, _ = kept
    state = state_of(rig, info)
    before: Any = state.encode()
    assert before[0] < 12
    state.membership.relay_holds = (RelayHold(4, 8, 2, 0),)
    after: Any = msgspec.msgpack.decode(pack(state.encode()))
    assert (after[0], after[-1]) == (12, [[4, 8, 2, 0]])
    found = PartitionState.decode(after)
    assert found.membership.relay_holds == state.membership.relay_holds
