"""Devices that come at once are served as they would be one by one: same state, same replies."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rigs.access import close_access, let_strangers_publish
from rigs.shards import sessions_of, unanswered, welcomes_of
from rigs.shards_of_a_node import Node
from weir.broker.api import events as ev
from weir.broker.runtime.outbox import TOGETHER_MS
from weir.model.batch import Batch
from weir.model.columns import NO_SEQUENCE
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.device import BY_HUB, DeviceOpcode, DeviceReplies, DeviceStream
from weir.protocol.trunk import OWN_SESSION, Arrival

SHARDS = 3
PING = device.frame(DeviceOpcode.PING, 9, b"")


def _damaged(frame: bytes) -> bytes:
    return frame[:-1] + bytes((frame[-1] ^ 1,))


SEQUENCES = st.one_of(st.integers(0, 3), st.just(NO_SEQUENCE))
PUBLISH = st.builds(
    lambda sn, sequence, value, bad: (
        _damaged(device.publish(sn, value, sequence))
        if bad
        else device.publish(sn, value, sequence)
    ),
    st.integers(0, 1), SEQUENCES, st.sampled_from((b"a", b"b", b"c" * 30)),
    st.sampled_from((False,) * 9 + (True,)),
)  # fmt: skip
PUBLISHES = st.lists(PUBLISH, min_size=1, max_size=4).map(b"".join)
HELLO = st.builds(
    device.hello,
    st.integers(1, 4),
    st.sampled_from((1, 1, 1, 2, 2, 2, 0xFFFFFFFF)),
    st.sampled_from(("locks", "locks", "locks", "doors", "none", "secret")),
    st.sampled_from((BY_HUB, BY_HUB, 0, 1, 7)),
    st.integers(0, 3),
)
#: What one connection says first; and what it does behind that in the same turn.
FIRST = st.tuples(HELLO, PUBLISHES)
NEXT = st.tuples(
    st.integers(0, 7),
    st.one_of(
        st.just(None),  # it goes
        st.just(PING),
        PUBLISHES,
        HELLO,
        st.builds(lambda hello, more: hello + more, HELLO, PUBLISHES),
    ),
)
TURN = st.tuples(st.lists(FIRST, min_size=1, max_size=6), st.lists(NEXT, max_size=3))
#: All of a round comes to one shard, and to its end before the next: else the order in which shards
#: reach each other would differ, which is nobody's promise.
ROUND = st.tuples(st.integers(0, SHARDS - 1), st.lists(TURN, min_size=1, max_size=3))


def arrival(session: int, hello: bytes, publishes: bytes) -> Arrival:
    said, published = DeviceStream().receive(hello + publishes)
    assert isinstance(said, device.DeviceHello)
    assert isinstance(published, device.DevicePublishes)
    return Arrival(session, said, published)


class World:
    """A node whose devices come at once, or one by one."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once
        self.node = node = Node(SHARDS)
        for one in node.all:
            node.connect(one.number)
        self.addresses = [
            address
            for name in ("locks", "doors", "secret")
            for address in node.answer(0, m.CreateTopic(name, 2)).addresses
        ]
        node.settle()
        let_strangers_publish([one.shard for one in node.all])
        self.numbers = iter(range(100, 1 << 20))
        self.come: dict[int, Any] = {}  # by session, the shard it came to
        self.gone: set[int] = set()

    def play(self, number: int, turns: list[Any]) -> None:
        for turn in turns:
            self._play(self.node.all[number], *turn)
        self.node.settle()

    def _play(self, one: Any, firsts: list[Any], nexts: list[Any]) -> None:
        sessions = [next(self.numbers) for _ in firsts]
        events: list[Any] = []
        arrivals = [arrival(n, *said) for n, said in zip(sessions, firsts, strict=True)]
        for each in arrivals:
            self.come[each.session] = one
            one.raw[each.session] = b""
            if not self.at_once:
                events.append(ev.Opened(each.session))
                events.append(ev.Received(each.session, [each.hello, each.publishes]))
        if self.at_once:
            events.append(ev.Arrived(arrivals))
        for index, said in nexts:
            session = sessions[index % len(sessions)]
            if session in self.gone or session in one.hung_up:
                continue
            if said is None:
                self.gone.add(session)
                events.append(ev.Closed(session))
            else:
                events.append(ev.Received(session, DeviceStream().receive(said)))
        one.do(one.shard.step(*events))
        one.do(one.shard.run_deferred())

    def end(self) -> dict[str, Any]:
        """Let all that waits come; return what can be seen then."""
        node = self.node
        node.settle()
        node.clock.monotonic += TOGETHER_MS
        for one in node.all:
            one.handle(ev.Ticked())
        node.settle()
        close_access([one.shard for one in node.all], "open")
        found: dict[str, Any] = {
            "heard": {n: self._heard(n) for n in self.come if n not in self.gone},
            "hung up": [sorted(one.hung_up) for one in node.all],
            "held": [self._held(address) for address in self.addresses],
            "in flight": [self._in_flight(one) for one in node.all],
            "welcomes": [welcomes_of(one.shard) for one in node.all],
            "told": [(one.shard.counts.devices.confirms, one.shard.counts.devices.refused)
                     for one in node.all],
        }  # fmt: skip
        for n, one in self.come.items():
            if n not in self.gone:
                one.handle(ev.Closed(n))
        node.settle()
        found["sessions"] = [len(sessions_of(one.shard)) for one in node.all]
        found["open"] = [len(unanswered(one.shard)) for one in node.all]
        found["budget"] = [one.shard.budget.used for one in node.all]
        found["guests"] = [
            {remote for _, remote in one.guests.values()} <= {1, OWN_SESSION} for one in node.all
        ]
        return found

    def _replies(self, session: int) -> list[Any]:
        return DeviceReplies().receive(self.come[session].raw[session])

    def _heard(self, session: int) -> tuple[list[Any], list[Any]]:
        """Return what it heard of its publishes, in order, and of all else: that the shard where it
        came may say before another shard's replies are there.
        """
        confirms, besides = [], []
        for reply in DeviceReplies().receive(self.come[session].raw[session]):
            if reply.opcode in (DeviceOpcode.PUBLISH, DeviceOpcode.PUBLISH_SEQUENCED):
                confirms.append(reply)
            else:
                besides.append((reply.opcode, reply.sn, reply.code))
        return confirms, sorted(besides)

    def _held(self, address: Any) -> list[Any]:
        found: list[Any] = []
        while (got := self.node.answer(0, m.Fetch(address, len(found), 1 << 20))).batches:
            for data in got.batches:
                batch = Batch(data)
                o = batch.origins
                assert o is not None
                rows = zip(batch.values(), o.hubs, o.boots, o.sequences, o.sns, strict=True)
                found += [(bytes(value), *rest) for value, *rest in rows]
        return found

    @staticmethod
    def _in_flight(one: Any) -> int:
        sessions = sessions_of(one.shard).values()
        return sum(session.device.in_flight for session in sessions if session.device is not None)


@settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(st.lists(ROUND, min_size=1, max_size=3))
def test_devices_that_come_at_once_are_served_as_one_by_one(rounds: list[Any]) -> None:
    seen = []
    for at_once in (True, False):
        world = World(at_once)
        for each in rounds:
            world.play(*each)
        seen.append(world.end())
    at_once_, alone = seen
    for name, value in at_once_.items():
        assert value == alone[name], name
    assert at_once_["in flight"] == [0] * SHARDS
    assert at_once_["welcomes"] == [{}] * SHARDS
    assert at_once_["budget"] == [0] * SHARDS
    for number, (confirms, besides) in at_once_["heard"].items():
        hung = any(number in one for one in at_once_["hung up"])
        assert hung or (confirms and besides), "each is welcomed and answered"
