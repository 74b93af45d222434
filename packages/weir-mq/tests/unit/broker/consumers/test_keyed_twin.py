"""A keyed cluster against the rule itself: none of a key goes out while an earlier one is out.

Random programs on a whole broker: publishes with and without keys, pulls of several consumers, acks
in part, nacks, consumers that die, leases that end, restarts. WEIR_KEYED programs are played.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from weir.broker.api.events import Closed
from weir.model.topic import Mode
from weir.protocol.client import messages as m

LEASE_MS = 1_000
PROGRAMS = int(os.environ.get("WEIR_KEYED", "25"))


@dataclass
class Held:
    """What a consumer has of one grant, as it sees it."""

    session: int
    fence: int
    until: int
    left: set[int] = field(default_factory=set)


class Twin:
    """Who holds what, by the replies alone; says what is wrong with a grant."""

    def __init__(self) -> None:
        self.keys: list[object] = []
        self.done: set[int] = set()
        self.held: list[Held] = []
        #: Given back: nobody's until then.
        self.resting: dict[int, int] = {}

    def grant(self, session: int, now: int, fence: int, offsets: list[int]) -> None:
        assert offsets == sorted(offsets)
        mine = set(offsets)
        for offset in offsets:
            assert offset not in self.done, f"{offset} is done"
            assert self.resting.get(offset, 0) <= now, f"{offset} is held back"
            assert not any(offset in held.left for held in self.live(now)), f"{offset} is held"
            key = self.keys[offset]
            for earlier in range(offset):
                if key is not None and self.keys[earlier] == key and earlier not in self.done:
                    assert earlier in mine, f"{offset} before {earlier}, both of {key!r}"
            for held in self.live(now):
                later = [o for o in held.left if self.keys[o] == key and key is not None]
                assert not later, f"{offset} while {later} of {key!r} are with {held.session}"
        for held in self.held:
            held.left -= mine
        self.held.append(Held(session, fence, now + LEASE_MS, mine))

    def live(self, now: int) -> list[Held]:
        return [held for held in self.held if held.until > now and held.left]


class Program:
    """One random program."""

    def __init__(self, rig: Any, seed: int) -> None:
        self.rig, self.dice, self.twin = rig, random.Random(seed), Twin()
        self.sessions = [1, 2, 3]
        self.next_session = 4
        for session in self.sessions:
            rig.connect(session)
        self.info = rig.topic(1)
        self.address = self.info.addresses[0]
        self.producer = rig.answer(1, m.OpenProducer())
        self.keys = self.dice.choice(([b"a"], [b"a", b"b", None], [b"%d" % n for n in range(20)]))
        self.compression = self.dice.choice((0, 1))

    @property
    def now(self) -> int:
        return int(self.rig.time.monotonic_ms())

    def publish(self) -> None:
        count = self.dice.choice((1, 1, 4, 12))
        keys = [self.dice.choice(self.keys) for _ in range(count)]
        first = len(self.twin.keys)
        given = None if all(key is None for key in keys) else keys
        values = [b"v" * 40] * count
        batch = self.rig.batch(
            self.info, self.producer, first, *values, keys=given, compression=self.compression
        )
        assert isinstance(self.rig.answer(self.sessions[0], batch), m.Confirm)
        self.twin.keys += keys

    def pull(self, session: int, most: int) -> bool:
        request = m.Pull(
            self.address, "crew", most, self.dice.choice((1, 500, 1 << 20)), 0, LEASE_MS, Mode.KEYED
        )
        granted = self.rig.answer(session, request)
        assert isinstance(granted, m.Granted), granted
        if not granted.fence:
            return False
        runs = granted.runs or ((granted.offset, granted.next_offset),)
        offsets = [offset for a, b in runs for offset in range(a, b)]
        assert 1 <= len(offsets) <= most
        self.twin.grant(session, self.now, granted.fence, offsets)
        return True

    def ack(self, held: Held, offsets: list[int]) -> None:
        ranges = [(held.fence, offset, offset + 1) for offset in offsets]
        reply = self.rig.answer(held.session, m.Ack(self.address, "crew", ranges))
        assert isinstance(reply, m.Acked), reply
        held.left -= set(offsets)
        self.twin.done |= set(offsets)

    def nack(self, held: Held) -> None:
        """Give back one message and, as clients do, all behind it of its key."""
        first = self.dice.choice(sorted(held.left))
        key = self.twin.keys[first]
        back = {o for o in held.left if o == first or (o > first and key == self.twin.keys[o])}
        back = {first} if key is None else back
        delay = self.dice.choice((0, 300, 3_000))
        ranges = [(offset, offset + 1) for offset in sorted(back)]
        reply = self.rig.answer(
            held.session, m.Nack(self.address, "crew", held.fence, ranges, delay)
        )
        assert isinstance(reply, m.Nacked), reply
        held.left -= back
        self.twin.resting.update(dict.fromkeys(back, self.now + delay))

    def die(self, session: int) -> None:
        self.rig.handle(Closed(session))
        self.rig.settle()
        for held in self.twin.held:
            if held.session == session:
                held.until = 0
        self.sessions.remove(session)
        self.sessions.append(self.next_session)
        self.rig.connect(self.next_session)
        self.next_session += 1

    def restart(self) -> None:
        self.rig.disk.crash()
        self.rig.boot()
        # Who was connected is so no more, and its leases go on as long as they did, or longer.
        self.sessions = [self.next_session + n for n in range(3)]
        self.next_session += 3
        for session in self.sessions:
            self.rig.connect(session)

    def step(self) -> None:
        dice = self.dice
        roll = dice.random()
        live = [held for held in self.twin.live(self.now) if held.session in self.sessions]
        if roll < 0.2:
            self.publish()
        elif roll < 0.5:
            self.pull(dice.choice(self.sessions), dice.choice((1, 3, 10)))
        elif roll < 0.75 and live:
            held = dice.choice(live)
            order = sorted(held.left)
            self.ack(held, order[: dice.randint(1, len(order))])
        elif roll < 0.83 and live:
            self.nack(dice.choice(live))
        elif roll < 0.9:
            self.rig.time.pass_ms(dice.choice((1, 200, 900)))
        elif roll < 0.94:
            self.die(dice.choice(self.sessions))
        elif roll < 0.96:
            self.restart()

    def finish(self) -> None:
        """All is granted in the end, and done."""
        for _ in range(20 + len(self.twin.keys)):
            self.rig.time.pass_ms(3_000 + LEASE_MS)
            while self.pull(self.sessions[0], 50):
                held = self.twin.held[-1]
                self.ack(held, sorted(held.left))
            if len(self.twin.done) == len(self.twin.keys):
                return
        raise AssertionError(f"{set(range(len(self.twin.keys))) - self.twin.done} are left")


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_the_messages_of_a_key_go_out_in_order(
    make_rig: Any, seed: int, tell: Callable[..., None]
) -> None:
    program = Program(make_rig(cache=(0, 1 << 20)[seed % 2]), seed)
    for _ in range(120):
        program.step()
    program.finish()
    tell(programs=1)
