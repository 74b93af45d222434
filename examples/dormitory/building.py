"""The building: a hub of locks on each floor, and the phones of those who live there.

All of them speak the device dialect (docs/DEVICE.md) over TCP, through weir.device.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from weir.device import Client

#: What a lock tells of an unlock, in 24 bytes: floor, door, resident, the floor's own count of its
#: unlocks, and milliseconds since 1970.
RECORD = struct.Struct(">HHIQQ")
CANTEEN = 0  # a floor of its own, with one door
DOORS = 250  # of a floor: a hub has room for 256 locks behind it
HOST = "127.0.0.1"
_PHONES = 1 << 32  # hubs have small numbers, phones those from here on
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Resident:
    """Somebody who leaves a room at breakfast, with a card or by phone, and has a card anyway."""

    number: int
    floor: int
    door: int
    has_phone: bool
    #: The door that the phone is to open; the desk refuses those of others.
    wish: int

    def ask(self, port: int) -> None:
        """Ask for a door by phone; returns when the wish is kept."""
        wish = {"resident": self.number, "floor": self.floor, "door": self.wish}
        with Client(HOST, port, _PHONES + self.number, boot=1, topic="wishes") as phone:
            phone.publish_sequenced(json.dumps(wish).encode())


class Floor:
    """A hub with the locks of one floor behind it."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: What it will have to show for itself: the numbers of its unlocks.
        self.opened: list[int] = []

    def live(self, port: int, cards: Sequence[Resident], commands: int) -> None:
        """Open doors for cards as they are held to it, and for so many commands of the desk."""
        obeyed: set[str] = set()
        with Client(HOST, port, self.number, boot=1, topic="unlocks") as hub:
            locks = hub.subscribe("locks", "commands", partition=self.number)
            for first in range(0, len(cards), _AT_ONCE):
                some = cards[first : first + _AT_ONCE]
                self._open(hub, [(one.door, one.number) for one in some])
                time.sleep(0.01)  # doors are slower than brokers
            while len(obeyed) < commands:
                messages = locks.take(seconds=1.0)
                # The desk may say a thing twice: a lock that obeyed a wish knows it again.
                said = {one["wish"]: one for one in (json.loads(m.value) for m in messages)}
                new = [said[wish] for wish in said if wish not in obeyed]
                self._open(hub, [(one["door"], one["resident"]) for one in new])
                obeyed.update(said)
                locks.ack(messages)

    def _open(self, hub: Client, doors: list[tuple[int, int]]) -> None:
        """Open doors; returns when what was done is kept, by a majority where there are several."""
        records = []
        for door, resident in doors:
            self.opened.append(len(self.opened))
            now = int(time.time() * 1_000)
            records.append(RECORD.pack(self.number, door, resident, self.opened[-1], now))
        hub.send_many(records, sn=[door for door, _ in doors])
