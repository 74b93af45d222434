"""One partition's idempotent pipeline, producer side (DESIGN §5 Produce, Dedupe).

The broker takes exactly last + 1. So batches go out in sequence order, always with the same bytes,
and whatever goes wrong is answered by sending again from some batch on. Rules:

* A refusal counts only if it answers the latest send of its batch: after a rewind, the refusals of
  older sends still on their way say nothing new.
* A confirm counts whichever send it answers: the batch is in the log.
* Batches are released in sequence order.
* Where a confirm said only that the leader had the batch, it may be gone with that leader. The next
  one's log ends before what is held then, which begins anew under another producer id.
* Where the partition has ended, nothing from the refused batch on is in the log or ever will be. It
  is given back once all before it is confirmed, to go elsewhere in its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from weir.errors import PartitionEnded, Refused, SequenceGap, WeirError
from weir.model.limits import PIPELINE_WINDOW
from weir.protocol.client.messages import Confirm

O = TypeVar("O")  # noqa: E741  # whose batch it is: told to the pipeline, given back with the batch


class Held(msgspec.Struct, Generic[O], eq=False):
    """A batch that is not confirmed. `correlation` is that of its latest send; 0: send it. `seen`
    is the stamp that had been seen when it was sent first: it is to lie behind that, and no other.
    """

    data: memoryview
    sequence: int
    count: int
    owner: O
    correlation: int = 0
    seen: int = 0
    confirm: Confirm | None = None

    @property
    def waits(self) -> bool:
        """Whether it must be sent, for the first time or again."""
        return self.correlation == 0 and self.confirm is None


class Released(msgspec.Struct, Generic[O], frozen=True):
    """The batch is in the log, and so are all before it."""

    held: Held[O]
    confirm: Confirm


class Failed(msgspec.Struct, Generic[O], frozen=True):
    """The batch is given up; whether it is in the log is unknown unless the error says so."""

    held: Held[O]
    error: WeirError


class Retry(msgspec.Struct, frozen=True):
    """Nothing goes out until `resume()`. `strikes` counts retries since the last confirm."""

    error: Refused
    strikes: int


class Forgotten(msgspec.Struct, frozen=True):
    """What was released is not in the log any more: nothing goes out until `renumber`."""

    error: Refused


class Stranded(msgspec.Struct, Generic[O], frozen=True):
    """The partition has ended, and none of these is in it: this pipeline is over."""

    held: list[Held[O]]
    error: PartitionEnded


#: What follows from an answer.
Outcome = Released[O] | Failed[O] | Retry | Forgotten | Stranded[O]


class Sequencer(Generic[O]):
    """Holds up to `window` batches of one (producer, epoch, partition) until they are confirmed."""

    __slots__ = ("_end", "_forgets", "_paused", "_sends", "_strikes", "error", "held",
                 "next_sequence", "window")  # fmt: skip

    def __init__(self, window: int, next_sequence: int = 0, forgets: bool = False) -> None:
        """Start an epoch. The broker remembers 64 answers, so `window` is capped there.

        `forgets`: what is confirmed may be lost with its leader.
        """
        self._forgets = forgets
        self.window = min(window, PIPELINE_WINDOW)
        self.next_sequence = next_sequence
        self.error: WeirError | None = None
        #: In sequence order; for others to look whether there are any.
        self.held: deque[Held[O]] = deque()
        self._sends: dict[int, Held[O]] = {}
        self._strikes = 0
        self._paused = False
        #: Nothing from this sequence on is taken; and what the broker said.
        self._end: tuple[int, PartitionEnded] | None = None

    def __len__(self) -> int:
        """Return the number of batches held."""
        return len(self.held)

    @property
    def room(self) -> bool:
        """Whether one more batch may be held."""
        return self.error is None and self._end is None and len(self.held) < self.window

    def hold(self, data: memoryview, count: int, owner: O) -> Held[O]:
        """Take a batch encoded with `next_sequence`; ask for `room` first."""
        held = Held(data, self.next_sequence, count, owner)
        self.next_sequence += count
        self.held.append(held)
        return held

    def to_send(self) -> Held[O] | None:
        """Return the batch whose turn it is, or None; tell `sent` before asking again."""
        if self._paused:
            return None
        for held in self.held:
            if self._end is not None and held.sequence >= self._end[0]:
                break
            if held.correlation == 0 and held.confirm is None:  # `waits`, at no price
                return held
        return None

    def sent(self, held: Held[O], correlation: int) -> None:
        """Note the send of a batch under a number that no other send of this connection has."""
        held.correlation = correlation
        self._sends[correlation] = held

    def seen(self, correlation: int) -> int:
        """Return the stamp that a send named as seen; 0 if it counts no more."""
        held = self._sends.get(correlation)
        return held.seen if held is not None else 0

    def answered(self, correlation: int, answer: Confirm | Refused) -> list[Outcome[O]]:
        """Take the answer to a send; return what follows from it, in order."""
        held = self._sends.pop(correlation, None)
        if held is None or held.confirm is not None or self.error is not None:
            return []
        if isinstance(answer, Confirm):
            held.confirm = answer
            self._strikes = 0
            released = self._release()
            return released if self._end is None else [*released, *self._strand()]
        if held.correlation != correlation:
            return []
        return self._refused(held, answer)

    def lost(self) -> None:
        """The connection ended: no answer comes to any send; all unconfirmed ones go out again."""
        self._sends.clear()
        for held in self.held:
            held.correlation = 0

    def resume(self) -> None:
        """The wait that a `Retry` asked for is over."""
        self._paused = False

    def renumber(self, anew: Callable[[memoryview, int], memoryview]) -> None:
        """Begin again with sequence 0: `anew` returns the bytes of a batch under another one."""
        self._sends.clear()
        self.next_sequence = 0
        for held in self.held:
            if held.confirm is None:
                held.data = anew(held.data, self.next_sequence)
                held.sequence, held.correlation = self.next_sequence, 0
                self.next_sequence += held.count
        self._paused = False

    def fail(self, error: WeirError) -> list[Outcome[O]]:
        """End this pipeline for good: give up what is not confirmed, release what is."""
        self.error = error
        outcomes: list[Outcome[O]] = [
            Failed(held, error) if held.confirm is None else Released(held, held.confirm)
            for held in self.held
        ]
        self.held.clear()
        self._sends.clear()
        return outcomes

    def _release(self) -> list[Outcome[O]]:
        released: list[Outcome[O]] = []
        while self.held and (confirm := self.held[0].confirm) is not None:
            released.append(Released(self.held.popleft(), confirm))
        return released

    def _strand(self) -> list[Outcome[O]]:
        """Give back what the partition does not take, once that is all there is."""
        if self._end is None or (self.held and self.held[0].sequence < self._end[0]):
            return []
        self.error = self._end[1]
        held, self.held = [*self.held], deque()
        self._sends.clear()
        return [Stranded(held, self._end[1])]

    def _refused(self, held: Held[O], error: Refused) -> list[Outcome[O]]:
        if isinstance(error, PartitionEnded):
            if self._end is None or held.sequence < self._end[0]:
                self._end = held.sequence, error
            return self._strand()
        begin: int | None = held.sequence if error.retryable else None
        if isinstance(error, SequenceGap):
            begin = self._behind_gap(held, error.detail)
            if self._forgets and error.detail < self.held[0].sequence:
                self._paused = True
                for later in self.held:
                    later.correlation = 0
                return [Forgotten(error)]
        if begin is None:
            return self.fail(error)
        for later in self.held:
            if later.sequence >= begin:
                later.correlation = 0
        self._strikes += 1
        self._paused = True
        return [Retry(error, self._strikes)]

    def _behind_gap(self, refused: Held[O], expected: int) -> int | None:
        """Return `expected` if a batch begins there that can fill the gap before `refused`."""
        for held in self.held:
            if held.sequence == expected and held.confirm is None:
                return expected if expected <= refused.sequence else None
        return None
