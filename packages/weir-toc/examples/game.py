"""A game of eight players without a server: positions may be lost, hits may not.

    python game.py $SET p1     # likewise p2 to p8, each in a process of its own

Each player sends its position in each frame by best effort: the next one makes up for what is lost.
Hits go to all by the reliable service, so all apply them in one order, and agree on who has won
which fight. A frame is a span of stamps. At its end all have the same state, and print its hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
import sys
from collections.abc import Callable

import weir_toc
from weir_toc import Member, Message, NotSent, ProcessFailed, SendFailed

NAMES = [f"p{number}" for number in range(1, 9)]
FRAME_NS = 50_000_000
#: The arena is a square; steps and shots reach so far.
SIDE, STEP, REACH = 100.0, 5.0, 30.0
HEALTH, DAMAGE = 100, 20
HIT, END = b"hit", b"end"


class State:
    """What all players agree on: it follows from the order of the reliable service."""

    def __init__(self, players: list[int]) -> None:
        self.health = dict.fromkeys(sorted(players), HEALTH)
        self.wins = dict.fromkeys(sorted(players), 0)
        self.hits = 0

    def hit(self, by: int, target: int) -> None:
        """Take a hit. Who was last has won, and the loser begins anew; so the order matters."""
        if target not in self.health:
            return
        self.hits += 1
        self.health[target] -= DAMAGE
        if self.health[target] <= 0:
            self.health[target] = HEALTH
            self.wins[by] = self.wins.get(by, 0) + 1

    def hash(self) -> str:
        facts = f"{self.health} {self.wins} {self.hits}".encode()
        return hashlib.blake2b(facts, digest_size=8).hexdigest()


class Player:
    """One process."""

    def __init__(self, me: Member, say: Callable[..., None]) -> None:
        self.me = me
        self.say = say
        self.players = [me.names[name] for name in NAMES]
        self.state = State(self.players)
        self.frame = 0
        self.ended: set[int] = set()
        #: Positions of others as this player has seen them last, and how many were lost.
        self.seen: dict[int, tuple[float, float]] = {}
        self.lost = 0
        self.dice = random.Random(me.name)
        self.position = self.dice.uniform(0, SIDE), self.dice.uniform(0, SIDE)
        #: The stamp of the last message to all, and whether it must be sent (again).
        self.end = 0
        self.owes_end = True

    async def watch(self) -> None:
        """Take the positions of others."""
        async for event in self.me.best_effort:
            if isinstance(event, Message):
                x, y = struct.unpack("!dd", event.payload)
                self.seen[event.source] = x, y
            else:
                self.lost += 1

    async def follow(self) -> None:
        """Apply what all have sent, in its order, until all have sent their last."""
        while not self.ended.issuperset(self.players):
            event = await anext(self.me.reliable)
            if isinstance(event, SendFailed):
                # A player has failed. Nobody has this hit, and its frame is over.
                self.owes_end |= event.stamp == self.end
                continue
            self.close_frames(event.stamp // FRAME_NS)
            if isinstance(event, ProcessFailed):
                self.players = [one for one in self.players if one != event.process]
                self.state.health.pop(event.process, None)
            elif event.payload == END:
                self.ended.add(event.source)
            elif event.payload:
                self.state.hit(event.source, int(event.payload.removeprefix(HIT)))

    def close_frames(self, frame: int) -> None:
        """An event of `frame` has come: all earlier frames are over, since stamps rise."""
        if self.frame and self.frame < frame:
            self.say("frame", self.frame, self.state.hash(), self.state.hits)
        self.frame = max(self.frame, frame)

    async def play(self, frames: int) -> None:
        """Move and shoot in each frame; then say that this is all."""
        for _ in range(frames):
            x, y = (min(SIDE, max(0.0, one + self.dice.uniform(-STEP, STEP)))
                    for one in self.position)  # fmt: skip
            self.position = x, y
            others = [one for one in self.players if one != self.me.process]
            near = [one for one in others if self.distance(one) <= REACH]
            target = min(near, key=self.distance, default=0)
            try:
                await self.me.send([(one, struct.pack("!dd", x, y)) for one in others])
                # Without a hit, too: what comes in a later frame ends the earlier ones.
                await self.send_to_all(HIT + str(target).encode() if target else b"")
            except NotSent:
                pass  # to a player that has left: the next frame goes to the others
            await asyncio.sleep(FRAME_NS / 1e9)
        while self.me.process not in self.ended:
            if self.owes_end:
                self.owes_end = False
                try:
                    self.end = await self.send_to_all(END)
                except NotSent:
                    self.owes_end = True
            await asyncio.sleep(FRAME_NS / 1e9)

    async def send_to_all(self, payload: bytes) -> int:
        return await self.me.send_reliable([(one, payload) for one in self.players])

    def distance(self, player: int) -> float:
        """How far a player is, as far as this one has seen."""
        if player not in self.seen:
            return 2 * SIDE
        (x, y), (own_x, own_y) = self.seen[player], self.position
        return float(((x - own_x) ** 2 + (y - own_y) ** 2) ** 0.5)


async def run(me: Member, frames: int, say: Callable[..., None]) -> None:
    """Play so many frames, and end once all have."""
    await me.wait_for(*NAMES)
    player = Player(me, say)
    watching = asyncio.create_task(player.watch())
    await asyncio.gather(player.follow(), player.play(frames))
    watching.cancel()
    say("end", player.frame, player.state.hash(), player.state.hits, "lost", player.lost)


async def main(url: str, name: str, frames: str = "100") -> None:
    """Join and play; the hash of each frame is printed."""
    async with weir_toc.join(url, name=name) as me:
        await run(me, int(frames), lambda *words: print(*words, flush=True))


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        print("usage: python game.py toc://HOST:PORT[,HOST:PORT...] NAME [FRAMES]", file=sys.stderr)
        sys.exit(2)
    asyncio.run(main(*sys.argv[1:]))
