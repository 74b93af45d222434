"""A bank of two shards with three replicas each: a transfer is one scattering, without a lock.

    python replicated_bank.py $SET a1 20           # likewise a2 a3 b1 b2 b3
    python replicated_bank.py $SET a1 20 rejoin    # after a1 was killed

Each process is a replica, and also transfers money between the shards. All parts of a transfer have
one stamp, so both shards apply it at one place of the order, and the sum over the shards is the
same at every stamp. A replica that starts again gets the state of its shard from the others.

A sender sends to all replicas that it knows. When it does not know yet of one that is back, its
order would miss that one. So an order names the view of its sender: how many replicas had come back
by then. Where that is not the view at its place of the order, all ignore it, and it is sent again.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import weir_toc
from weir_toc import Event, Message, NotSent, ProcessFailed, SendFailed

NAMES = ["a1", "a2", "a3", "b1", "b2", "b3"]
ACCOUNTS = {"a": ["ada", "alan", "alonzo"], "b": ["barbara", "blaise", "butler"]}
OPENING = 100
#: The id of a process is below: a failure comes behind all messages of its stamp.
BEHIND_ALL = 1 << 32


class Replica:
    """One shard as one process has it: it follows from the order, so all replicas are equal."""

    def __init__(self, shard: str, members: dict[str, int]) -> None:
        self.shard = shard
        self.balances = dict.fromkeys(ACCOUNTS[shard], OPENING)
        self.members = members
        self.view = 0
        self.done: list[str] = []
        #: The stamp and the sender of the last order that was applied.
        self.place = [0, 0]

    def apply(self, place: list[int], order: dict[str, Any]) -> bool:
        """Apply an order; return whether it counts."""
        if order["kind"] == "join":
            if not {*self.members.values()} <= {*order["to"]}:
                return False  # its sender did not know of all that are here
            self.view += 1
            self.members = {**self.members, order["name"]: place[1]}
        elif order["view"] != self.view:
            return False
        for account, amount in order["changes"].items():
            self.balances[account] += amount
        if order["kind"] == "done":
            self.done.append(order["name"])
        self.place = place
        return True


class Bank:
    """One process: it sends orders, and applies what all have sent."""

    def __init__(self, me: weir_toc.sync.Member, say: Callable[..., None]) -> None:
        self.me = me
        self.say = say
        self.replica = Replica(me.name[0], {})
        #: What came since this replica asked to come back, until it gets the state.
        self.held: list[Event] | None = None
        self.asked = 0

    def take(self) -> tuple[Event, bool]:
        """Take the next event; return it, and whether the order in it counts."""
        event = next(self.me.reliable)
        told = json.loads(event.payload) if isinstance(event, Message) else {}
        if told.get("kind") == "state":
            self.take_state(told)
            return event, True
        if self.held is not None:
            self.held.append(event)
            return event, True
        return event, self.apply(event)

    def apply(self, event: Event) -> bool:
        replica = self.replica
        if isinstance(event, ProcessFailed):
            here = replica.members.items()
            replica.members = {name: process for name, process in here if process != event.process}
        if not isinstance(event, Message):
            return False
        order = json.loads(event.payload)
        counts = replica.apply([event.stamp, event.source], order)
        if counts:
            total = sum(replica.balances.values())
            self.say(order["kind"], event.stamp, replica.shard, total, *replica.balances.values())
        if order["kind"] == "join" and order["name"][0] == replica.shard:
            # All replicas of the shard send the state, since each of them may fail meanwhile.
            state = vars(replica) if counts else None
            told = {"kind": "state", "of": event.stamp, "state": state}
            with contextlib.suppress(NotSent):  # it has failed again
                self.me.send_reliable([(event.source, json.dumps(told).encode())])
        return counts

    def take_state(self, told: dict[str, Any]) -> None:
        """Go on from the state of another replica, with what came behind it."""
        if self.held is None or told["of"] != self.asked:
            return  # another one was first
        if told["state"] is None:
            self.rejoin()
            return
        vars(self.replica).update(told["state"])
        self.say("rejoined", *self.replica.place)
        held, self.held = self.held, None
        for event in held:
            place = [event.stamp, BEHIND_ALL]
            if isinstance(event, Message):
                place[1] = event.source
            if not isinstance(event, SendFailed) and place > self.replica.place:
                self.apply(event)

    def rejoin(self) -> None:
        """Ask all that are here for the state; it comes later."""
        self.held = []
        self.asked = self.send({"kind": "join", "name": self.me.name})

    def send(self, order: dict[str, Any]) -> int:
        """Send an order to all replicas, until it counts; return its stamp."""
        changes = order.get("changes", {})
        while True:
            here = self.me.names if order["kind"] == "join" else self.replica.members
            members = {name: here[name] for name in NAMES if name in here}
            whole = {**order, "view": self.replica.view, "to": [*members.values()]}
            parts = []
            for name, process in members.items():
                own = {one: amount for one, amount in changes.items() if one in ACCOUNTS[name[0]]}
                parts.append((process, json.dumps({**whole, "changes": own}).encode()))
            try:
                stamp = self.me.send_reliable(parts)
            except NotSent:
                self.take()  # one of them has failed: the order tells of it soon
                continue
            while True:
                event, counts = self.take()
                if isinstance(event, Message) and event[:2] == (stamp, self.me.process):
                    break
                if isinstance(event, SendFailed) and event.stamp == stamp:
                    break  # recalled, as one of them has failed
            if counts:
                return stamp


def run(
    me: weir_toc.sync.Member, transfers: int, rejoins: bool, say: Callable[..., None]
) -> None:  # fmt: skip
    """Transfer money, and end once all six replicas have."""
    dice = random.Random(me.name)
    bank = Bank(me, say)
    if rejoins:
        bank.rejoin()
        while bank.held is not None:
            bank.take()
    else:
        me.wait_for(*NAMES)
        bank.replica.members = {name: me.names[name] for name in NAMES}
    for _ in range(transfers):
        source, to = (dice.choice(ACCOUNTS[shard]) for shard in dice.sample("ab", 2))
        amount = dice.randint(1, 50)
        bank.send({"kind": "transfer", "changes": {source: -amount, to: amount}})
    bank.send({"kind": "done", "name": me.name})
    while {*bank.replica.done} != {*NAMES}:
        bank.take()
    say("end")


def main(url: str, name: str, transfers: str = "20", how: str = "") -> None:
    """Join and run; what is applied is printed."""
    with weir_toc.sync.join(url, name=name) as me:
        run(me, int(transfers), how == "rejoin", lambda *words: print(*words, flush=True))


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5 or sys.argv[4:] not in ([], ["rejoin"]):
        print("usage: python replicated_bank.py toc://HOST:PORT[,HOST:PORT...] NAME "
              "[TRANSFERS [rejoin]]", file=sys.stderr)  # fmt: skip
        sys.exit(2)
    main(*sys.argv[1:])
