"""Rules of `weir.host`, and of what joins the shards of a node, that can be taken away.

Not planted is what no world meets: frames that are so large that they need a reservation, or so
many in one read that they are served by parts, for no simulated client sends such; and devices of
two shards that arrive in one turn, for what comes over a trunk is a turn of its own there.
"""

from __future__ import annotations

from weir.broker.api.settings import Layout
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.forwarding.trunks import ShardTrunks
from weir.model.ids import partition_of, topic_of
from weir.testing.simulator.world import MS
from weir_lab.sim.mutants.planting import Patch, bug, mutant
from weir_lab.sim.outcome import CRASH
from weir_lab.sim.shape import Shape

_ACCEPT_QUEUE = "weir.host.accept_queue"
_CONNECTIONS = "weir.host.connections"
_EVENT_QUEUE = "weir.host.shard_loop"
_FLUSHES = "weir.host.logs"
_SUPERVISION = "weir.host.supervision"

#: Faults end early, so that no later one hides what a broken trunk left open.
BRIEF = Shape(
    faults_until=400 * MS, fault_every=(100 * MS, 200 * MS), producers=4, batches=40, rots=(0,)
)


@bug(breaks={"Live", "Timely"})
def nothing_is_settled_behind_requests(patch: Patch) -> None:
    """Whatever a shard takes is settled behind it, if it is more than a publish."""
    patch.source(
        _EVENT_QUEUE,
        "return _NOTHING if is_over else shard.run_deferred()",
        "return _NOTHING",
    )


@bug(breaks={"Live", CRASH})
def another_device_is_taken_for_the_one_that_was_let_in(patch: Patch) -> None:
    """What a device says first goes with its own arrival alone."""
    patch.source(
        _EVENT_QUEUE,
        "                and opened.session == session\n",
        "                and opened.session\n",
    )


@bug(breaks={"Live"})
def a_log_that_rests_is_never_woken(patch: Patch) -> None:
    """A log rests behind a crowd's flush for a while, and not for good."""
    patch.source(
        _FLUSHES,
        "return ev.Flushed(log, flush, rest > 0), rest",
        "return ev.Flushed(log, flush, rest > 0), 0.0",
    )


@bug(breaks={"Live"})
def the_accept_queue_is_never_served_again(patch: Patch) -> None:
    """Who waited in the queue is let in when its turn has come."""
    patch.source(
        _ACCEPT_QUEUE,
        "                self._tokens -= 1\n                found.append(connection)",
        "                self._tokens -= 1",
    )


@bug(breaks={"Live"})
def turns_to_enter_never_come_back(patch: Patch) -> None:
    """Once a burst is used up, connections are let in at a rate."""
    patch.source(
        _ACCEPT_QUEUE,
        "self._tokens + limits.accepts_per_second * (now - self._then)",
        "self._tokens",
    )


@bug(breaks={"Live"})
def a_hold_is_never_released(patch: Patch) -> None:
    """All are read again once the budget has room."""
    patch.source(
        _CONNECTIONS,
        "        for one in list(self.open_now.values()):\n            one.update()",
        "        for one in list(self.open_now.values()) if effect.hold else ():\n"
        "            one.update()",
    )


@bug(breaks={"Live"})
def what_was_sent_stays_charged(patch: Patch) -> None:
    """The budget gets back what has left the process."""
    patch.source(
        _CONNECTIONS,
        "        connections.budget.release(replies.release(self._transport))\n",
        "        replies.release(self._transport)\n",
    )


@bug(breaks={"Live"})
def what_a_gone_peer_did_not_take_stays_charged(patch: Patch) -> None:
    """The budget gets back what a connection held when it ended."""
    patch.source(
        _CONNECTIONS,
        "        self._connections.budget.release(self._replies.drop())\n",
        "",
    )


@bug(breaks={"Live", "Leased", "AckedOnce"})
def a_session_that_ended_is_not_told(patch: Patch) -> None:
    """What a connection was granted is free with its end."""
    patch.source(
        _CONNECTIONS,
        "        if self.open_now.pop(one.session, None) is not None:\n"
        "            self.queue.put(ev.Closed(one.session))",
        "        self.open_now.pop(one.session, None)",
    )


@bug(breaks={"Live"})
def frames_behind_a_fetch_are_dropped(patch: Patch) -> None:
    """What comes behind a request for messages is served behind that one's reply."""
    patch.source(
        _CONNECTIONS,
        "self._waiting, frames = frames[end:], frames[:end]",
        "self._waiting, frames = (), frames[:end]",
    )


@bug(breaks={"Live"})
def who_was_full_is_served_no_more(patch: Patch) -> None:
    """Frames that wait for a peer to take its replies are served when it has."""
    patch.source(
        _CONNECTIONS,
        "        self._full = False\n        self.serve()\n",
        "        self._full = False\n",
    )


@bug(breaks={"Live"})
def who_was_full_is_read_no_more(patch: Patch) -> None:
    """A peer that has taken its replies is read again."""
    patch.source(
        _CONNECTIONS,
        "        self._full = False\n        self.serve()\n        self.update()",
        "        self._full = False\n        self.serve()",
    )


@mutant(seed=0, breaks={"Durable", "Live"})
def groups_move_with_the_number_of_shards(patch: Patch) -> None:
    """The log of a group hangs on how many shards there are today (ADR 0009 §1)."""

    def log_of(self: Layout, group: int) -> int:
        return (topic_of(group) + partition_of(group)) % self.shards

    patch.setattr(Layout, "log_of", log_of)


@mutant(seed=17, breaks={"Live"}, shape=BRIEF)
def a_broken_trunk_is_nobodys_business(patch: Patch) -> None:
    """What was passed on through a trunk that broke is never answered (ADR 0009 §3)."""
    patch.setattr(Forwarder, "closed", lambda self, shard: self._trunks.pop(shard, None))


@mutant(seed=4, breaks={"Durable", "Live", "Honest", "OneOffset"})
def what_a_copy_lacks_does_not_exist(patch: Patch) -> None:
    """A shard takes its copy of the registry for the whole truth (ADR 0009 §4)."""
    patch.setattr(ShardTrunks, "may_be_news", lambda self: False)
    patch.setattr(ShardTrunks, "certain", lambda self, error: error)


@bug(breaks={"Live"})
def who_is_started_again_is_joined_by_half(patch: Patch) -> None:
    """A new process is joined with all others, both ways."""
    patch.source(
        _SUPERVISION,
        "found += TrunkJoin(member.shard, other.shard), TrunkJoin(other.shard, member.shard)",
        "found.append(TrunkJoin(member.shard, other.shard))",
    )
