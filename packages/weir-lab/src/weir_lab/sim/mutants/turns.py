"""Rules of clusters that read in total order that can be taken away: one cursor, and turns."""

from __future__ import annotations

from dataclasses import replace

from weir.broker.consumers import cursor_leases
from weir.broker.consumers.cursor_leases import CursorLeases
from weir.broker.records.control import CursorMoved, CursorSought, CursorTaken
from weir.broker.runtime.outbox import Caller
from weir.broker.state.clusters import AT_ONCE
from weir.broker.state.cursors import Cursor, Cursors
from weir.protocol.client import messages as m
from weir.protocol.client.consumers import Turn
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Move, TurnTaken
from weir_lab.sim.mutants.order import ORDER
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.programs.subscribers.takers import Taker
from weir_lab.sim.shape import NODE

#: Nodes go and come back while three take turns.
TURNS = replace(ORDER, kinds=("kill", "part"), takers=(3,), ordered=(0,), pace=(2, 20))
#: Nobody waits to follow who has the turn.
UNRIVALLED = replace(TURNS, takers=(1,))
#: One node, which is often down, so that it is known how long a turn lasts.
LONE = replace(
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


@mutant(seed=1, breaks={"OneCursor"}, shape=TURNS)
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


@mutant(seed=11, breaks={"OneCursor"}, shape=TURNS)
def a_snapshot_of_an_older_cursor(patch: Patch) -> None:
    """A snapshot has all that was applied by then: who starts from it goes on behind no move."""
    honest, kept = Cursors.encode, "_encoded_before"

    def encode(self: Cursors) -> list[tuple[object, ...]]:
        rows = honest(self)
        before = vars(self).get(kept, rows)
        vars(self)[kept] = rows
        return before  # type: ignore[no-any-return]

    patch.setattr(Cursors, "encode", encode)


@mutant(seed=13, breaks={"OneCursor"}, shape=UNRIVALLED)
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


@mutant(seed=5, breaks={"OneTurn"}, shape=LONE)
def a_turn_in_vain_is_forgotten(patch: Patch) -> None:
    """Turns that began at a cursor and did not move it are attempts of what lies there."""
    honest = Cursor.take

    def take(self: Cursor, index: int, record: CursorTaken) -> bool:
        given = honest(self, index, record)
        self.attempts = 1
        return given

    patch.setattr(Cursor, "take", take)


@mutant(seed=3, breaks={"OneTurn"}, shape=TURNS)
def a_consumer_goes_on_in_a_turn_that_was_over(patch: Patch) -> None:
    """Who is told that its turn is over has none: another works at it by now (docs/adr/0026)."""
    honest = Taker._moved

    def moved(self: Taker, turn: TurnTaken, move: Move, reply: m.Reply) -> None:
        honest(self, turn, move, reply)
        if move.stale >= 0 and self._turn is None and not self.retired:
            self._turn = turn
            self._go_on()

    patch.setattr(Taker, "_moved", moved)
