"""Rules of consumer clusters, their modes, delayed messages and handlers that can be taken away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weir.broker.consumers import keyed
from weir.broker.consumers.grants import Grants
from weir.broker.consumers.keyed import KeyedPicker
from weir.broker.consumers.ordered import OrderedPicker
from weir.broker.consumers.picker import ANYBODY, PullQueue
from weir.broker.consumers.shared import SharedPicker
from weir.broker.records.partition import MessagesGranted
from weir.broker.state.clusters import ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import Delays
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.scenarios.filters import play_filters
from weir_lab.sim.shape import NODE_HANDLERS

#: One node, and handlers beside clients that consume in turns.
SHAPE = replace(NODE_HANDLERS, takers=(0,), scatterers=(0,), rots=(0,), retentions=(0,))


@mutant(seed=0, breaks={"AckedOnce", "Live"})
def ack_forgotten(patch: Patch) -> None:
    """An acked message goes out again when its lease is over (counterexample 20)."""

    def ack(self: ClusterState, fence: int, first: int, behind: int) -> bool:
        grant = self.grants.get(fence)
        return grant is not None and grant.left.covers(first, behind)

    patch.setattr(ClusterState, "ack", ack)


@mutant(seed=0, breaks={"AckedOnce"})
def grant_past_an_ack_in_line(patch: Patch) -> None:
    """A grant that was proposed behind an ack is made as if that had not come (AckedOnce)."""
    honest = ClusterState.grant

    def grant(self: ClusterState, fence: int, record: MessagesGranted) -> Grant:
        made = honest(self, fence, record)
        whole = Ranges([(record.first, record.next)])
        if made is None:
            return Grant(record.consumer, record.deadline, 2, whole)
        made.left = whole
        return made

    patch.setattr(ClusterState, "grant", grant)


@mutant(seed=3, breaks={"Live", "AckedOnce"})
def a_cluster_stays_below_the_start(patch: Patch) -> None:
    """A cluster waits for ever for messages that are gone (DESIGN §5 Consume)."""
    patch.setattr(ClusterState, "drop_below", lambda self, start: None)


@mutant(seed=8, breaks={"AckedOnce", "Live"})
def grants_go_on_during_a_seek(patch: Patch) -> None:
    """A grant picked before a seek and committed behind it leaves a gap (DESIGN §5 Consume)."""
    honest = Grants.resume

    def resume(self: Grants, name: str, forget: bool) -> None:
        self._changing[name] += 1
        honest(self, name, forget)

    patch.setattr(Grants, "suspend", lambda self, name: None)
    patch.setattr(Grants, "resume", resume)


@mutant(seed=4, breaks={"AckedOnce", "Live"})
def a_seek_spares_old_grants(patch: Patch) -> None:
    """An ack of before a seek marks messages as done behind it (DESIGN §5 Consume)."""

    def seek(self: ClusterState, offset: int) -> None:
        self.cursor = self.frontier = offset
        self.done = Ranges()

    patch.setattr(ClusterState, "seek", seek)


@mutant(seed=1, breaks={"KeyOrder"})
def keys_do_not_count(patch: Patch) -> None:
    """The messages of a key go to whoever pulls, as others do (DESIGN §5 Consume)."""

    def keys_of(first: int, validity: object, hashes: Sequence[int]) -> list[int]:
        return [-1 - first - i for i in range(len(hashes))]

    patch.setattr(keyed, "keys_of", keys_of)


@mutant(seed=7, breaks={"KeyOrder", "Leased", "HeldBack"})
def a_window_forgets_what_is_out(patch: Patch) -> None:
    """A new leader takes for free what an earlier one granted, and its key with it."""
    patch.setattr(KeyedPicker, "_out_in", lambda self, first, behind: Ranges())


@mutant(seed=4, breaks={"OrderedOnce"})
def a_standby_is_granted(patch: Patch) -> None:
    """Whoever pulls gets the next messages while the active one lives (DESIGN §5 Consume)."""

    def next_peer(self: OrderedPicker, queue: PullQueue) -> int:
        self._active_of(queue)
        return ANYBODY

    patch.setattr(OrderedPicker, "next_peer", next_peer)
    patch.setattr(ClusterState, "_is_next", lambda self, record: True)


@mutant(seed=56, breaks={"OrderedOnce"})
def late_acks_of_the_deposed_count(patch: Patch) -> None:
    """Who was followed by another can still ack what lies behind (counterexample 22)."""
    patch.setattr(ClusterState, "_depose", lambda self, first, counted=None: None)


@mutant(seed=4, breaks={"OrderedOnce"})
def a_grant_past_a_return_in_line(patch: Patch) -> None:
    """A grant that was proposed behind a nack is made as if that had not come."""
    patch.setattr(ClusterState, "_is_next", lambda self, record: True)


@mutant(seed=10, breaks={"NotBeforeDue"})
def a_snapshot_without_delays(patch: Patch) -> None:
    """After a restart nobody knows which messages are not due (DESIGN §5 Consume)."""
    honest = Delays.encode
    patch.setattr(Delays, "encode", lambda self: honest(Delays()))


@mutant(seed=1, breaks={"AckedOnce", "Live"})
def holes_are_forgotten(patch: Patch) -> None:
    """A new leader goes on behind what an earlier one passed by (counterexample 21)."""
    honest = SharedPicker.pick

    def pick(self: SharedPicker, *arguments: object) -> object:
        self._holes = None
        return honest(self, *arguments)  # type: ignore[arg-type]

    patch.setattr(SharedPicker, "pick", pick)


@mutant(seed=3, breaks={"EffectOnce"}, shape=SHAPE)
def a_message_is_acked_before_its_effect(patch: Patch) -> None:
    """A message is done once its handler has returned, and no sooner."""
    patch.source(
        "weir.app.dispatcher",
        "await self._work(unit.message)",
        "unit.done(); await self._work(unit.message)",
    )


@mutant(seed=3, breaks={"EffectOnce"}, shape=SHAPE)
def an_inbox_does_not_look_for_its_row(patch: Patch) -> None:
    """Whoever finds a message's row in the inbox has nothing to do."""
    patch.source(
        "weir.app.inbox",
        "return session.execute(statement, message).first() is not None",
        "session.execute(statement, message); return True",
    )


@mutant(seed=0, breaks={"EffectOnce"}, shape=SHAPE)
def a_dead_letter_is_acked_unpublished(patch: Patch) -> None:
    """A message that no handler can handle is acked once it lies in the dead-letter topic."""
    patch.source(
        "weir.app.dispatcher",
        "await self._bury(part.message, part.attempts, dead.reason)",
        "part.attempts",
    )


@mutant(seed=1, breaks={"Live", "Handled"}, play=play_filters)
def the_frontier_passes_what_was_looked_at(patch: Patch) -> None:
    """What is skipped for its tags moves no frontier past what is wanted (ADR 0115 §4)."""
    patch.source(
        "weir.broker.state.clusters",
        "        self.done.add(first, behind)\n",
        "        self.done.add(first, behind)\n"
        "        self.frontier = max(self.frontier, behind)\n",
    )


@mutant(seed=0, breaks={"ReadWhole"}, play=play_filters)
def a_batch_is_wanted_by_one_of_its_tags(patch: Patch) -> None:
    """Of a batch with other tags too, a cluster gets the messages that match (ADR 0115 §3)."""
    patch.source(
        "weir.broker.runtime.filtering",
        "    if len(wanted) == len(listed):\n        return whole\n",
        "    if wanted:\n        return whole\n",
    )
