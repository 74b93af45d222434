"""Between replicas: what is not sound is not used, and what comes too early is kept."""

from __future__ import annotations

from typing import Any

import weir_raft as raft
from rigs.shards import device_producer_of
from weir.broker.api import events as ev
from weir.broker.replica.frames import pack
from weir.errors import NotLeader
from weir.model.ids import group_of, place_of, voter_of
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.device import DeviceReplies, DeviceStream
from weir.protocol.link import LinkStream
from weir_raft import messages as r


def sent(trio: Any, sender: int, to: int, message: Any, group: int = 0) -> int:
    """Hand a message over as if node `sender` had sent it; return how many frames were bad."""
    before = trio[to].shard.counts.bad_frames
    frames = LinkStream().receive(b"".join(pack(group, message)))
    trio[to].handle(ev.PeerSent(place_of(sender, 0), frames))
    return trio[to].shard.counts.bad_frames - before


def test_a_frame_that_changed_on_its_way_is_sent_again(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    assert trio.told(produce(info, grant, 0, b"a"), group).offset == 0
    leader = trio.leader(group)
    leader.ask(produce(info, grant, 1, b"b"))
    spoilt = 0
    for (sender, to, quick), buffers in trio.wires.items():
        for at, data in enumerate(buffers):
            if sender == leader.id and not quick and len(data) > 120:
                buffers[at] = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
                spoilt |= to
    assert spoilt, "the entry was on its way to somebody"
    assert trio.told(produce(info, grant, 1, b"b"), group).offset == 1
    assert trio.same_everywhere(group) == [b"a", b"b"]
    assert sum(node.shard.counts.bad_frames for node in trio.live()) >= 1


def test_a_damaged_replica_is_given_up_once_others_have_all_it_ever_had(trio: Any) -> None:
    trio.leader()
    overheard = trio[1].group(0).rejoin
    to, sender = voter_of(1), voter_of(2)
    noop = raft.Entry(12, 5, raft.EntryKind.NOOP, None, 1)
    for harmless in (
        r.Append(to, sender, 5, 11, 4, (noop,), 11),
        r.Append(to, sender, 5, 12, 5, (), 12),  # committed, perhaps by what it had itself
        r.TimeoutNow(to, sender, 5),
    ):
        for _ in range(100):
            overheard.take(harmless)
        assert not overheard.others_go_on
    overheard.take(r.Append(to, sender, 5, 12, 5, (), 12, spared=True))
    assert overheard.others_go_on
    overheard.take(r.Append(to, sender, 4, 11, 4, (), 11))  # its leadership is over
    assert overheard.others_go_on
    overheard.take(r.Append(to, sender, 6, 12, 5, (), 12))
    assert not overheard.others_go_on, "the next leader knows better"


def test_a_node_speaks_for_itself_alone(trio: Any) -> None:
    trio.leader()
    honest = r.TimeoutNow(voter_of(1), voter_of(2), 1)
    assert sent(trio, 2, 1, honest) == 0
    assert sent(trio, 3, 1, honest) == 1, "it comes over the link of another node"
    assert sent(trio, 2, 3, honest) == 1, "it is meant for another node"


def test_a_group_that_is_opened_later_hears_who_wanted_to_lead_it(trio: Any) -> None:
    trio.topic("warm")
    began = trio.clock.monotonic
    for name in ("a", "b", "c", "d", "e", "f"):
        info = trio.told(m.CreateTopic(name, 1), 0)
        trio.leader(group_of(info.id, 0))
    assert trio.clock.monotonic - began < 6 * 300, "no election waited for a second try"


def test_leadership_that_is_handed_over_costs_no_message(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    assert trio.told(produce(info, grant, 0, b"a"), group).offset == 0
    old = trio.leader(group)
    heir = next(node for node in trio.live() if node is not old)
    old.group(group).node.transfer_leadership(voter_of(heir.id))
    asked = old.ask(produce(info, grant, 1, b"b"))
    old.group(group).process_ready()
    assert not old.group(group).accepts
    trio.until(lambda: old.reply_to(asked))
    assert trio.leader(group) is heir
    assert trio.told(produce(info, grant, 1, b"b"), group).offset == 1
    assert trio.same_everywhere(group) == [b"a", b"b"]


def codes(node: Any) -> list[int]:
    """Return what the device in session 50 was told."""
    return [reply.code for reply in DeviceReplies().receive(node.raw[50])]


def test_devices_are_told_when_nobody_here_can_know(trio: Any) -> None:
    info = trio.topic()
    group = info.addresses[0].group
    leader = trio.leader(group)
    trio.until(lambda: device_producer_of(leader.shard).id)
    leader.handle(ev.Opened(50))
    leader.raw[50] = b""
    stream = DeviceStream()
    leader.handle(ev.Received(50, stream.receive(d.hello(7, 1, "t"))))
    trio.settle()
    leader.handle(ev.Received(50, stream.receive(d.publish(1, b"kept", 0))))
    trio.settle()
    assert codes(leader) == [0, 0]
    trio.isolate(leader.id)
    for sequence in (1, 2):
        frame = d.publish(1, b"lost", sequence)
        leader.handle(ev.Received(50, stream.receive(frame)))
    trio.settle()
    assert codes(leader) == [0, 0], "nothing is said while it may still be committed"
    trio.run(2_000)
    assert codes(leader)[2:] == [NotLeader.code] * 2
    assert leader.shard.budget.used == 0
