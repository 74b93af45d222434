"""A lock service in one page: every process is a replica, and no server is needed.

    python lock_service.py $SET a a,b,c,d

Requests are reliable scatterings to all replicas. All apply them in one order, so all agree on who
holds the lock. The fencing number is the stamp of a request with the id of its process, as two
processes may have one stamp: such pairs rise from one holder to the next. A resource refuses a pair
below one that it has seen. A process that fails frees its lock at one place of the order, the same
for all.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

import weir_toc
from weir_toc import Event, Message, NotSent, ProcessFailed, SendFailed

LOCK, UNLOCK, DONE = b"lock", b"unlock", b"done"


class Replica:
    """Who waits for the lock, in order; the first one holds it."""

    def __init__(self, processes: list[int], say: Callable[..., None]) -> None:
        self.members = processes
        self.say = say
        #: Stamps of requests with their processes: the fencing numbers.
        self.queue: deque[tuple[int, int]] = deque()
        self.done: set[int] = set()

    @property
    def holder(self) -> tuple[int, int] | None:
        """The fencing number of the process that holds the lock."""
        return self.queue[0] if self.queue else None

    def apply(self, event: Event) -> None:
        """Take an event of the reliable service, in its order."""
        before = self.holder
        if isinstance(event, ProcessFailed):
            self.members = [one for one in self.members if one != event.process]
            self.queue = deque(one for one in self.queue if one[1] != event.process)
        elif isinstance(event, Message) and event.payload == LOCK:
            self.queue.append((event.stamp, event.source))
        elif isinstance(event, Message) and event.payload == UNLOCK:
            if self.holder is not None and self.holder[1] == event.source:
                self.queue.popleft()
        elif isinstance(event, Message) and event.payload == DONE:
            self.done.add(event.source)
        if self.holder is not None and self.holder != before:
            self.say("held by", *self.holder)


class LockClient:
    """One process: it sends requests, and applies what all have sent."""

    def __init__(
        self, me: weir_toc.sync.Member, names: list[str], say: Callable[..., None]
    ) -> None:  # fmt: skip
        self.me = me
        self.replica = Replica([me.names[name] for name in names], say)

    def send(self, payload: bytes) -> int:
        """Send to all replicas that are there, until that is delivered; return its stamp."""
        while True:
            try:
                stamp = self.me.send_reliable([(to, payload) for to in self.replica.members])
            except NotSent:
                self.next()  # one of them has failed: the order tells of it soon
                continue
            while (event := self.next()) != Message(stamp, self.me.process, payload):
                if isinstance(event, SendFailed) and event.stamp == stamp:
                    break  # recalled, as one of them has failed: send again
            else:
                return stamp

    def next(self) -> Event:
        event = next(self.me.reliable)
        self.replica.apply(event)
        return event

    def acquire(self) -> tuple[int, int]:
        """Wait for the lock; return the fencing number."""
        fence = self.send(LOCK), self.me.process
        while self.replica.holder != fence:
            self.next()
        return fence


def run(
    me: weir_toc.sync.Member, names: list[str], rounds: int, hold_seconds: float,
    say: Callable[..., None],
) -> None:  # fmt: skip
    """Take the lock a few times, and end once all processes have."""
    me.wait_for(*names)
    client = LockClient(me, names, say)
    for _ in range(rounds):
        say("mine", *client.acquire())
        time.sleep(hold_seconds)
        client.send(UNLOCK)
    client.send(DONE)
    while not client.replica.done.issuperset(client.replica.members):
        client.next()
    say("done")


def main(url: str, name: str, others: str, rounds: str = "3", hold_seconds: str = "0") -> None:
    """Join and run; what happens is printed."""
    with weir_toc.sync.join(url, name=name) as me:
        names, seconds = others.split(","), float(hold_seconds)
        run(me, names, int(rounds), seconds, lambda *words: print(*words, flush=True))


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 6:
        print("usage: python lock_service.py toc://HOST:PORT[,HOST:PORT...] NAME NAME,NAME... "
              "[ROUNDS [HOLD_SECONDS]]", file=sys.stderr)  # fmt: skip
        sys.exit(2)
    main(*sys.argv[1:])
