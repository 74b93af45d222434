"""Rules of leases, of what is given back or kept longer, and of turns at one cursor, to be taken
away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from weir.broker.consumers import cursor_leases
from weir.broker.consumers.cursor_leases import CursorLeases
from weir.broker.consumers.grants import Grants
from weir.broker.consumers.leases import BegunMessages, Leases, Run
from weir.broker.records.partition import (
    CursorMoved,
    CursorSought,
    CursorTaken,
    MessagesGranted,
    MessagesReturned,
)
from weir.broker.runtime.outbox import Caller
from weir.broker.state.clusters import AT_ONCE, NOBODY, ClusterState, Cursor, Cursors, Grant
from weir.client.consumer.pulls import Pulling
from weir.model.topic import AckOutcome
from weir.protocol.client import messages as m
from weir.protocol.client.consumers import Turn
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Move, TurnTaken
from weir_lab.sim.mutants.order import ORDER
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.programs.subscribers.takers import Taker
from weir_lab.sim.scenarios.killers import play_killers
from weir_lab.sim.shape import NODE

#: One node and the client that ships, with large values, devices and an operator beside them.
BESIDE = dataclasses.replace(NODE, shipped=(True,))
#: Nodes go and come back while three take turns.
TURNS = dataclasses.replace(ORDER, kinds=("kill", "part"), takers=(3,), ordered=(0,), pace=(2, 20))
#: Nobody waits to follow who has the turn.
UNRIVALLED = dataclasses.replace(TURNS, takers=(1,))
#: One node, which is often down, so that it is known how long a turn lasts.
LONE = dataclasses.replace(
    NODE,
    takers=(3,),
    rots=(0,),
    retentions=(0,),
    batches=30,
    hubs=0,
    receivers=0,
    consumers=0,
    keepers=0,
    authors=0,
    operators=(False,),
    fault_every=(50 * MS, 300 * MS),
)


@mutant(seed=4, breaks={"HeldBack"})
def a_delay_is_forgotten(patch: Patch) -> None:
    """What was given back with a delay goes to the next consumer at once (DESIGN §5 Consume)."""
    honest = Grants.returned
    patch.setattr(
        Grants,
        "returned",
        lambda self, name, fence, delay_ms, session: honest(self, name, fence, 0, session),
    )


@mutant(seed=4, breaks={"HeldBack"})
def a_new_leader_forgets_a_delay(patch: Patch) -> None:
    """What is held back is in no entry, only in the leader's head (counterexample 20)."""
    honest = ClusterState.give_back

    def give_back(self: ClusterState, fence: int, record: MessagesReturned) -> bool:
        whole = honest(self, fence, record)
        if fence in self.grants:
            self.grants[fence].deadline = AT_ONCE
        return whole

    patch.setattr(ClusterState, "give_back", give_back)


@mutant(seed=5, breaks={"Leased"})
def a_new_leader_forgets_an_extension(patch: Patch) -> None:
    """An extension is in no entry, only in the leader's head (counterexample 20)."""

    def extend(self: ClusterState, fence: int, deadline: int) -> bool:
        grant = self.grants.get(fence)
        return grant is not None and grant.consumer != NOBODY and grant.deadline != AT_ONCE

    patch.setattr(ClusterState, "extend", extend)


@mutant(seed=12, breaks={"AckedOnce"})
def a_late_ack_is_told_that_it_did_the_work(patch: Patch) -> None:
    """An ack of what another did meanwhile is answered as if its own grant had done it."""
    honest = ClusterState.late

    def late(
        self: ClusterState, fence: int, first: int, behind: int
    ) -> Iterator[tuple[int, int, AckOutcome]]:
        for row in honest(self, fence, first, behind):
            if row[2] is not AckOutcome.DONE_ELSEWHERE:
                yield row

    patch.setattr(ClusterState, "late", late)


@mutant(seed=21, breaks={"Leased"})
def an_extension_is_only_written_down(patch: Patch) -> None:
    """The leader itself goes on by the time that a grant had at first (ADR 0003)."""
    patch.setattr(Leases, "extend", lambda self, name, fence, due_ms: None)


@mutant(seed=1, breaks={"AckedOnce"})
def a_nack_resets_attempts(patch: Patch) -> None:
    """A message that nobody can handle is never dead-lettered (counterexample 20)."""
    honest = ClusterState.give_back

    def give_back(self: ClusterState, fence: int, record: MessagesReturned) -> bool:
        whole = honest(self, fence, record)
        if fence in self.grants:
            self.grants[fence].attempts = 0
        return whole

    patch.setattr(ClusterState, "give_back", give_back)


@mutant(seed=39, breaks={"Leased", "HeldBack", "AckedOnce"})
def a_stale_nack_takes_from_the_new_holder(patch: Patch) -> None:
    """Who was too late gives back what another holds by now (DESIGN §5 Consume)."""
    honest = ClusterState.give_back

    def give_back(self: ClusterState, fence: int, record: MessagesReturned) -> bool:
        held = {f for span in record.ranges for f, _, _ in self.holders.within(*span)}
        newest = max(held, default=record.fence)
        return honest(self, fence, replace(record, fence=newest))

    patch.setattr(ClusterState, "give_back", give_back)


@mutant(seed=1, breaks={"AckedOnce", "Live"})
def what_is_given_back_is_forgotten(patch: Patch) -> None:
    """What a consumer gives back is nobody's, and not even known to be (DESIGN §5 Consume)."""
    honest = ClusterState.give_back

    def give_back(self: ClusterState, fence: int, record: MessagesReturned) -> bool:
        whole = honest(self, fence, record)
        grant = self.grants.get(fence)
        if grant is not None:
            for run in grant.left:
                self.take(fence, grant, *run)
        return whole

    patch.setattr(ClusterState, "give_back", give_back)


@mutant(seed=8, breaks={"Leased"})
def leases_end_when_they_begin(patch: Patch) -> None:
    """Whoever comes next is granted what another works on (DESIGN §5 Consume)."""
    honest = Grants.granted

    def granted(self: Grants, index: int, record: MessagesGranted, grant: Grant | None) -> None:
        honest(self, index, record, grant)
        if grant is not None:
            self.leases.begin(record.cluster, index, 0)

    patch.setattr(Grants, "granted", granted)


@mutant(seed=2, breaks={"AckedOnce"}, shape=BESIDE)
def whoever_told_nothing_tried_nothing(patch: Patch) -> None:
    """Of a grant that is lost with nothing told as begun, the first message had an attempt."""

    def of_grants(self: BegunMessages, name: str, fences: Iterable[int]) -> list[Run]:
        lost = [fence for fence in fences if not self._clusters[name].grants[fence].is_counted]
        return [run for fence in lost for run in self._begun(name, self._clusters[name], fence)]

    patch.setattr(BegunMessages, "of_grants", of_grants)


@mutant(seed=0, breaks={"AckedOnce"}, play=play_killers)
def what_only_waits_loses_attempts(patch: Patch) -> None:
    """What was tried before and was not reported was not begun again (ADR 0064)."""
    patch.setattr(BegunMessages, "_waits", lambda self, name, grant: False)


@mutant(seed=0, breaks={"Live"}, play=play_killers)
def what_was_tried_begins_unreported(patch: Patch) -> None:
    """A client reports what was tried before, and then begins it (ADR 0064)."""

    async def report(self: Pulling, partition: int, runs: list[Run]) -> None:
        return

    patch.setattr(Pulling, "report", report)


@mutant(seed=0, breaks={"OneCursor"}, shape=TURNS)
def late_moves_count(patch: Patch) -> None:
    """Who had a turn before another's moves nothing any more (counterexample 22)."""
    honest = Cursor.move

    def move(self: Cursor, record: CursorMoved) -> bool:
        fence, consumer, self.fence, self.consumer = self.fence, self.consumer, record.fence, 1
        try:
            return honest(self, record)
        finally:
            self.fence, self.consumer = fence, consumer

    proposes = CursorLeases.move

    def propose(self: CursorLeases, caller: Caller, request: m.MoveCursor) -> None:
        cursor = self._cursor(request.cluster)
        fence, consumer, cursor.fence, cursor.consumer = (
            cursor.fence, cursor.consumer, request.fence, 1,
        )  # fmt: skip
        try:
            proposes(self, caller, request)
        finally:
            cursor.fence, cursor.consumer = fence, consumer

    patch.setattr(Cursor, "move", move)
    patch.setattr(CursorLeases, "move", propose)


@mutant(seed=6, breaks={"OneCursor"}, shape=TURNS)
def a_snapshot_of_an_older_cursor(patch: Patch) -> None:
    """A snapshot has all that was applied by then: who starts from it goes on behind no move."""
    honest, kept = Cursors.encode, "_encoded_before"

    def encode(self: Cursors) -> list[tuple[object, ...]]:
        rows = honest(self)
        before = vars(self).get(kept, rows)
        vars(self)[kept] = rows
        return before  # type: ignore[no-any-return]

    patch.setattr(Cursors, "encode", encode)


@mutant(seed=2, breaks={"OneCursor"}, shape=UNRIVALLED)
def a_turn_outlives_a_seek(patch: Patch) -> None:
    """A seek ends the turn: what its holder says of the cursor afterwards is of before."""

    def seek(self: Cursor, record: CursorSought) -> None:
        self.offsets, self.attempts = record.offsets, 0

    patch.setattr(Cursor, "seek", seek)


@mutant(seed=8, breaks={"OneTurn", "OneCursor"}, shape=TURNS)
def a_turn_before_it_is_committed(patch: Patch) -> None:
    """Nobody works before a majority knows whose turn it is."""
    honest = CursorLeases._serve

    def serve(self: CursorLeases, name: str) -> None:
        before = set(self._takes._waiters)
        honest(self, name)
        cursor = self._state.cursors.get(name, Cursor())
        for index in set(self._takes._waiters) - before:
            caller = self._takes._waiters[index].caller
            self._outbox.reply(caller, Turn(index, AT_ONCE, cursor.offsets, cursor.attempts + 1))

    def taken(self: CursorLeases, index: int, record: CursorTaken, given: bool) -> None:
        self._takes.applied(index)
        self._taking.discard(record.cluster)

    patch.setattr(CursorLeases, "_serve", serve)
    patch.setattr(CursorLeases, "taken", taken)


@mutant(seed=5, breaks={"OneTurn"}, shape=LONE)
def a_new_leader_knows_of_no_turn(patch: Patch) -> None:
    """A turn that an earlier leader gave lasts as long as it said (ADR 0026)."""
    patch.setattr(cursor_leases, "left_of", lambda deadline, consumer, last_stamp, time: 0)


@mutant(seed=6, breaks={"OneTurn"}, shape=LONE)
def a_turn_in_vain_is_forgotten(patch: Patch) -> None:
    """Turns that began at a cursor and did not move it are attempts of what lies there."""
    honest = Cursor.take

    def take(self: Cursor, index: int, record: CursorTaken) -> bool:
        given = honest(self, index, record)
        self.attempts = 1
        return given

    patch.setattr(Cursor, "take", take)


@mutant(seed=5, breaks={"OneTurn"}, shape=TURNS)
def a_consumer_goes_on_in_a_turn_that_was_over(patch: Patch) -> None:
    """Who is told that its turn is over has none: another works at it by now (docs/adr/0026)."""
    honest = Taker._moved

    def moved(self: Taker, turn: TurnTaken, move: Move, reply: m.Reply) -> None:
        honest(self, turn, move, reply)
        if move.stale >= 0 and self._turn is None and not self.retired:
            self._turn = turn
            self._go_on()

    patch.setattr(Taker, "_moved", moved)
