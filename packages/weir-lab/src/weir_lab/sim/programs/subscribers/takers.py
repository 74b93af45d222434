"""Simulated consumers of a cluster that reads in total order: they take turns at one cursor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weir.errors import StaleGrant, refusal
from weir.protocol.client import messages as m
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Move, SeekAll, TurnTaken, Work
from weir_lab.sim.observations import Row
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.subscribers.order_readers import OrderReader

_WAIT_MS = 100
_LEASES_MS = (100, 400, 1_500)
_NEXT = (0, 15 * MS)
_WORK = (0, 10 * MS)
_SIZES = (1, 3, 10)
#: How long a turn that is given back is nobody's.
_DELAYS_MS = (0, 0, 30, 300)
#: What a consumer does now and then: it dies, with or without its memory of the turn; stands still
#: for longer than its lease, and goes on as if it had not; gives back what failed, or the turn; and
#: says again, when it has no turn any more, what it said last.
_DIE = 0.03
_FORGET = 0.5
_STALL = 0.06
_FAIL = 0.06
_LEAVE = 0.05
_REPEAT = 0.1
#: How likely what is done moves the cursor at once, and how likely an idle holder keeps its turn.
_MOVE = 0.7
_KEEP = 0.5
_SEEK = (300 * MS, 3_000 * MS)
_SEEKS = 3


class Cursor:
    """How far a taker has done all in its turn, and what it said of that."""

    def __init__(self, offsets: Sequence[int] = ()) -> None:
        """Begin where the turn does."""
        #: By partition, the offset below which all is done.
        self.done = dict(enumerate(offsets))
        #: What was said last, and what waits for its answer.
        self.said = self.place
        self.saying: Move | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """The cursor as it should be."""
        return tuple(self.done.get(p, 0) for p in range(max(self.done, default=-1) + 1))


class Taker(OrderReader):
    """Takes turns; in its turn, does one message after the other, as they come in the one order."""

    anew = 0.0

    def __init__(self, scene: Scene, name: str, cluster: str) -> None:
        """Work for `cluster`."""
        self._cluster = cluster
        self._turn: TurnTaken | None = None
        #: The connection over which the turn came; it ends with no other.
        self._turn_link: Link | None = None
        self._asking_turn = False
        self._lease_ms = _LEASES_MS[0]
        #: What was given in this turn and is not begun, and how much was given of this reading.
        self._given_rows: deque[Row] = deque()
        self._picked = 0
        self._working = False
        self._cursor = Cursor()
        #: How the turn ends, if it does: the delay in ms, and whether nothing was begun.
        self._ending_turn: tuple[int, bool] | None = None
        self._over = False
        self._connections = 0
        super().__init__(scene, name)
        brokers = scene.brokers
        #: Whether it is known when the broker lets go of a turn: a trunk may break unseen.
        self._knows_leases = brokers.machine.logs == 1 and not brokers.far

    @property
    def finished(self) -> bool:
        """Whether it had a turn in which nothing was left, and gave it back."""
        return self._over

    def ready(self) -> None:
        """Go on with the turn, as if it had not ended with the connection, or take one."""
        self._connections += 1
        if self._turn is None:
            self._take_turn()
        else:
            super().ready()
            self._say_more()
            self._go_on()

    def closed(self) -> None:
        """Forget what was asked; a consumer that died forgets its turn as well."""
        super().closed()
        self._asking_turn = False
        self._cursor.saying = None
        if self.world.chance(_FORGET):
            self._turn = None

    def lost(self, link: Link) -> None:
        """The broker knows that too, unless it is gone itself: then the turn lasts."""
        if not link.orphaned and link is self._turn_link and self._turn is not None:
            self._turn.gone = link.broke
        super().lost(link)

    # -- turns ---------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        if self.link is None or self._asking_turn or self._turn is not None or self._over:
            return
        dice, asked = self.world.dice, self.world.now
        lease_ms = _LEASES_MS[1] if self.ending else dice.choice(_LEASES_MS)
        wait_ms = dice.choice((0, _WAIT_MS, 5 * _WAIT_MS))
        request = m.TakeTurn(self.addresses[0], self._cluster, (), lease_ms, wait_ms)
        self._asking_turn = True
        self.ask(request, lambda reply: self._took(asked, lease_ms, reply))
        if not self.ending and self.link is not None and self.world.chance(_DIE):
            self.link.cut(self)

    def _took(self, asked: int, lease_ms: int, reply: m.Reply) -> None:
        self._asking_turn = False
        if isinstance(reply, m.Turn) and reply.fence:
            self._begin_turn(asked, lease_ms, reply)
            return
        if isinstance(reply, m.Refusal) and not refusal(reply.code, "").retryable:
            self.complain("OneCursor", f"a turn was refused: {reply}")
        self.world.after(self.rhythm(_NEXT), self._take_turn)

    def _begin_turn(self, asked: int, lease_ms: int, reply: m.Turn) -> None:
        self._turn_link = self.link
        self._turn = turn = TurnTaken(
            self._cluster,
            reply.fence,
            reply.offsets,
            reply.attempts,
            asked,
            self.world.now,
            lease_ms if self._knows_leases else 0,
            holder=f"{self.name}#{self._connections}",
        )
        self.history.turns.append(turn)
        self._cursor = Cursor(reply.offsets)
        self._given = dict(self._cursor.done)
        self._ending_turn = None
        self._given_rows.clear()
        self._working = False
        self._begin()
        super().ready()
        self._lease_ms = lease_ms
        self.world.after(lease_ms * MS // 2, self._look_after, turn)

    def _look_after(self, turn: TurnTaken) -> None:
        """Keep the turn for longer while it lasts, or give it back; or do neither."""
        if turn is not self._turn:
            return
        self.world.after(self.world.between(0, self._lease_ms * MS), self._look_after, turn)
        if self._ending_turn is not None:
            self._say()
        elif not self.ending and self.world.chance(_LEAVE):
            self._end_turn(0, untried=not self._working)
        elif self.ending or self.world.chance(_KEEP):
            self._say()

    def _end_turn(self, delay_ms: int, untried: bool) -> None:
        self._ending_turn = delay_ms, untried
        self._say()

    def _lose_turn(self) -> None:
        self._turn = None
        self._ending_turn = None
        self.world.after(self.rhythm(_NEXT), self._take_turn)

    # -- reading and work ----------------------------------------------------------------------

    def _begin(self) -> None:
        self._picked = 0
        super()._begin()

    def _fetch(self, partition: int) -> None:
        if self._turn is not None:
            super()._fetch(partition)

    def _ask(self) -> None:
        if self._turn is not None:
            super()._ask()

    def _give(self) -> None:
        super()._give()
        self._given_rows.extend(self._pass.reading.rows[self._picked :])
        self._picked = len(self._pass.reading.rows)
        self._go_on()

    def _go_on(self) -> None:
        """Begin with what comes next."""
        turn, rows = self._turn, self._given_rows
        if turn is None or self._working or self._ending_turn is not None:
            return
        if not rows:
            if self.ending and super().finished:
                self._end_turn(0, untried=True)
            return
        work = [rows.popleft()]
        size = _SIZES[-1] if self.ending else self.world.dice.choice(_SIZES)
        while rows and len(work) < size and rows[0][:2] == work[0][:2]:
            work.append(rows.popleft())
        one = Work(self._cluster, turn.fence, tuple(work), self.world.now)
        self.history.works.append(one)
        self._working = True
        stalls = not self.ending and self.world.chance(_STALL)
        pause = self.world.dice.randrange(2 * self._lease_ms * MS) if stalls else self.rhythm(_WORK)
        self.world.after(pause, self._worked, turn, one)

    def _worked(self, turn: TurnTaken, work: Work) -> None:
        if turn is not self._turn or self._ending_turn is not None:
            return
        if not self.ending and self.world.chance(_FAIL):
            self._end_turn(self.world.dice.choice(_DELAYS_MS), untried=False)
            return
        self._working = False
        work.done = True
        last = work.rows[-1]
        self._cursor.done[last.partition] = last.offset + 1
        if self.ending or not self._given_rows or self.world.chance(_MOVE):
            self._say()
        if not self.ending and self.link is not None and self.world.chance(_DIE):
            self.link.cut(self)
        self._go_on()

    # -- the cursor ----------------------------------------------------------------------------

    def _say(self) -> None:
        """Let the cursor be where all before is done, and keep the turn or give it back; one word
        at a time.
        """
        turn, ending = self._turn, self._ending_turn
        if turn is None or self.link is None or self._cursor.saying is not None:
            return
        place, idle = self._cursor.place, not self._working
        delay_ms, untried = ending or (self._lease_ms, idle)
        move = Move(self._cluster, turn.fence, place, self.world.now, delay_ms,
                    ending is not None, untried)  # fmt: skip
        self._cursor.said, self._cursor.saying = place, move
        self._send(turn, move)

    def _say_more(self) -> None:
        """Say what came to be meanwhile."""
        if self._cursor.said != self._cursor.place or self._ending_turn is not None:
            self._say()

    def _send(self, turn: TurnTaken, move: Move) -> None:
        self.history.moves.append(move)
        request = m.MoveCursor(self.addresses[0], self._cluster, move.fence, move.offsets,
                               move.lease_ms, move.ends, move.untried)  # fmt: skip
        self.ask(request, lambda reply: self._moved(turn, move, reply))

    def _moved(self, turn: TurnTaken, move: Move, reply: m.Reply) -> None:
        error = None
        if move is self._cursor.saying:
            self._cursor.saying = None
        if isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
        if isinstance(reply, m.Moved):
            move.confirmed = self.world.now
        elif isinstance(error, StaleGrant):
            move.stale = self.world.now
        elif error is not None and not error.retryable:
            self.complain("OneCursor", f"a move was refused: {error!r}")
        if turn is not self._turn:
            return
        if error is not None and move.stale < 0:
            self.soon(self._say_again, turn)
        elif move.ends or move.stale >= 0:
            self._over = self.ending and move.stale < 0 and self._is_through()
            self._lose_turn()
            if self.world.chance(_REPEAT):
                self.soon(self._repeat, turn, move)
        else:
            self._say_more()

    def _is_through(self) -> bool:
        return super().finished and not self._given_rows and not self._working

    def _say_again(self, turn: TurnTaken) -> None:
        if turn is self._turn:
            self._say()

    def _repeat(self, turn: TurnTaken, move: Move) -> None:
        """Say once more what is an old story."""
        if self.link is not None and not self.retired:
            again = Move(move.cluster, move.fence, move.offsets, self.world.now, self._lease_ms,
                         untried=move.untried)  # fmt: skip
            self._send(turn, again)


class Seeker(Client):
    """An operator that moves the cursor now and then, to a place where it was before."""

    def __init__(self, scene: Scene, name: str, cluster: str) -> None:
        """Seek for `cluster`."""
        super().__init__(scene, name)
        self._cluster = cluster
        self._left = _SEEKS
        self._seek: SeekAll | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing is under way."""
        return self._seek is None

    def ready(self) -> None:
        """Go on in a while."""
        self.world.after(self.rhythm(_SEEK), self._act, self.link)

    def closed(self) -> None:
        """What was asked may or may not have happened, or still happen in a moment."""
        super().closed()
        self._seek = None

    def _act(self, link: Link | None) -> None:
        if link is not self.link or self.link is None or self.ending or not self._left:
            return
        places = [move.offsets for move in self.history.moves]
        if not places:
            self.ready()
            return
        self._left -= 1
        self._seek = SeekAll(self._cluster, self.world.dice.choice(places), self.world.now)
        self.history.sought.append(self._seek)
        request = m.SeekCursor(self.addresses[0], self._cluster, self._seek.offsets)
        self.ask(request, self._sought)

    def _sought(self, reply: m.Reply) -> None:
        seek, self._seek = self._seek, None
        if seek is None:
            return
        if isinstance(reply, m.Moved):
            seek.settled, seek.done = self.world.now, True
        elif isinstance(reply, m.Refusal) and not refusal(reply.code, "").retryable:
            self.complain("OneCursor", f"a seek was refused: {reply}")
        self.ready()
