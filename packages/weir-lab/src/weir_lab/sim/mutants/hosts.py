"""Rules of what lies between connections and a shard, `weir.host`, that can be taken away.

Not planted is what no world meets: frames that are so large that they need a reservation, or so
many in one read that they are served by parts, for no simulated client sends such; and devices of
two shards that arrive in one turn, for what comes over a trunk is a turn of its own there.
"""

from __future__ import annotations

from weir_lab.sim.mutants.planting import Patch, bug
from weir_lab.sim.outcome import CRASH

_ACCEPT_QUEUE = "weir.host.accept_queue"
_CONNECTIONS = "weir.host.connections"
_EVENT_QUEUE = "weir.host.event_queue"
_FLUSHES = "weir.host.flush_schedule"


@bug(breaks={"Live", "Timely"})
def nothing_is_settled_behind_requests(patch: Patch) -> None:
    """Whatever a shard takes is settled behind it, if it is more than a publish."""
    patch.source(
        _EVENT_QUEUE,
        "return _NOTHING if _only_publish(taken) else shard.run_deferred()",
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
        "self._tokens + self._rate * (now - self._then)",
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
        "                self._connections.budget.release(sent)\n",
        "",
    )


@bug(breaks={"Live"})
def what_a_gone_peer_did_not_take_stays_charged(patch: Patch) -> None:
    """The budget gets back what a connection held when it ended."""
    patch.source(
        _CONNECTIONS,
        "        self._connections.budget.release(self._unsent)\n        self._unsent = 0",
        "        self._unsent = 0",
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
