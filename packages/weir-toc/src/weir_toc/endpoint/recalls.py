"""Reliable scatterings that are recalled: their receivers are asked to discard them, and answer.

Receivers that have failed cannot be asked. What they must not deliver is noted by the controller.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from weir_toc import packet as wire
from weir_toc.endpoint.events import Undeliverable
from weir_toc.endpoint.flow import Scattering
from weir_toc.endpoint.outbox import Outbox
from weir_toc.packet import Packet

#: So many recalls to one receiver may be without their answers.
RECALLS_AT_ONCE = 32
#: What a receiver owes that was asked: the answer to a recall.
_RECALL = 2


class Notes:
    """Recalled scatterings that wait for a note, by the process whose failure is the reason.

    A scattering is recalled from all receivers but those that have failed. One of these may have
    acknowledged it and come back: what the controller has noted tells it what it must not deliver.
    So the commit barrier stays below until that is noted.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Scattering]] = {}
        #: Stamps that are to be told next, by failed receiver.
        self._untold: dict[int, list[int]] = defaultdict(list)

    def add(self, process: int, scattering: Scattering, receivers: Iterable[int]) -> None:
        """Let a scattering wait: these receivers cannot be told that it is recalled.

        Scatterings are added in the order of their stamps.
        """
        scattering.notes += 1
        self._waiting.setdefault(process, []).append(scattering)
        for receiver in receivers:
            self._untold[receiver].append(scattering.stamp)

    def told(self, process: int) -> Iterator[Undeliverable]:
        """Yield what is to be noted because of the failure of a process, if anything is."""
        if self._untold:
            untold, self._untold = self._untold, defaultdict(list)
            ranges = tuple((one, _ranges(stamps)) for one, stamps in untold.items())
            yield Undeliverable(process, ranges)

    def noted(self, process: int) -> Iterator[Scattering]:
        """Yield what waited for the note of a failure."""
        for scattering in self._waiting.pop(process, ()):
            scattering.notes -= 1
            yield scattering


class Recalls:
    """What each receiver is asked to discard, few at once: a burst of all would be lost in part."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        #: By receiver: what waits to be recalled, in the order of stamps, and what was asked for,
        #: by stamp, with the time of that.
        self._waiting: dict[int, deque[Scattering]] = defaultdict(deque)
        self._asked: dict[int, dict[int, tuple[Scattering, int]]] = defaultdict(dict)

    def add(self, now: int, scattering: Scattering, to: int) -> None:
        """Recall a scattering from a receiver, in its turn."""
        scattering.recalls.add(to)
        self._waiting[to].append(scattering)
        self._go_on(now, to)

    def answered(self, now: int, scattering: Scattering, to: int) -> bool:
        """A receiver has discarded it; return whether it was asked."""
        asked = self._asked.get(to)
        if asked is None or asked.pop(scattering.stamp, None) is None:
            return False
        scattering.recalls.discard(to)
        self._go_on(now, to)
        return True

    def forget(self, to: int) -> None:
        """A receiver has failed: it is asked no more."""
        self._waiting.pop(to, None)
        self._asked.pop(to, None)

    @property
    def is_asking(self) -> bool:
        """Whether a receiver was asked and has not answered."""
        return any(self._asked.values())

    def tick(self, now: int, timeouts: Mapping[int, int]) -> None:
        """Ask again those that did not answer within the timeout of each."""
        for to, asked in self._asked.items():
            for scattering, asked_at in [*asked.values()]:
                if now - asked_at >= timeouts[to]:
                    self._ask(now, scattering, to)

    def owed(self, to: int) -> tuple[int, int] | None:
        """The oldest recall that a receiver has not answered, by its stamp; None without any."""
        asked = self._asked.get(to)
        return (_RECALL, min(asked)) if asked else None

    def asked(self, to: int) -> list[Packet]:
        """Return what a receiver was asked and has not answered."""
        return [_recall(scattering, to) for scattering, _ in self._asked.get(to, {}).values()]

    def _go_on(self, now: int, to: int) -> None:
        waiting = self._waiting[to]
        while waiting and len(self._asked[to]) < RECALLS_AT_ONCE:
            self._ask(now, waiting.popleft(), to)

    def _ask(self, now: int, scattering: Scattering, to: int) -> None:
        self._asked[to][scattering.stamp] = scattering, now
        self._outbox.queue(now, _recall(scattering, to))


def _recall(scattering: Scattering, to: int) -> Packet:
    """Return what recalls a scattering from a receiver."""
    part = next(part for part in scattering.parts if part.to == to)
    return Packet(wire.RECALL, 0, to, scattering.stamp, psn=part.first_psn,
                  payload=wire.encode_count(part.packets))  # fmt: skip


def _ranges(stamps: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the first and the last of stamps that follow each other; they rise."""
    found: list[tuple[int, int]] = []
    for stamp in stamps:
        if found and stamp == found[-1][1] + 1:
            found[-1] = found[-1][0], stamp
        else:
            found.append((stamp, stamp))
    return tuple(found)
