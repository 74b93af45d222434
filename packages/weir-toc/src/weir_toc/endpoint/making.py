"""Scatterings as a program hands them in: what can be sent, and what is alike.

Those that follow each other, and have one receiver and one size, are made in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from weir_toc.endpoint.events import Service
from weir_toc.endpoint.flow import Batch, Part, Scattering
from weir_toc.errors import InvalidScattering
from weir_toc.packet import PAYLOAD_BYTES_MAX

#: So many alike scatterings are handled in one piece.
RUN_MIN = 4


class Alike(NamedTuple):
    """Messages of one size to one process, each a scattering of its own."""

    to: int
    payloads: Sequence[bytes]


#: Scatterings, each a payload for each of its receivers, or those that are known to be alike.
Scatterings = Sequence[Sequence[tuple[int, bytes]]] | Alike


def made(
    part_max: int, now: int, service: Service, scatterings: Scatterings
) -> list[Scattering | Batch]:
    """Return scatterings that are not queued, those that are alike in one piece.

    Raises InvalidScattering.
    """
    found: list[Scattering | Batch] = []
    if isinstance(scatterings, Alike):
        to, payloads = scatterings
        if len(payloads) >= RUN_MIN and len(payloads[0]) <= PAYLOAD_BYTES_MAX:
            _made(part_max, now, service, ((to, payloads[0]),))  # whether it can be sent
            return [Batch(to, service, range(len(payloads)), payloads, now)]
        scatterings = [((to, payload),) for payload in payloads]
    if len(scatterings) < RUN_MIN:
        found += [_made(part_max, now, service, parts) for parts in scatterings]
        return found
    for shape, group in groupby(scatterings, _shape):
        alike = [*group]
        if shape is None or len(alike) < RUN_MIN or shape[1] > PAYLOAD_BYTES_MAX:
            found += [_made(part_max, now, service, parts) for parts in alike]
        else:
            _made(part_max, now, service, alike[0])  # whether it can be sent
            payloads = [parts[0][1] for parts in alike]
            found.append(Batch(shape[0], service, range(len(alike)), payloads, now))
    return found


def memory_of(scatterings: Sequence[Scattering | Batch]) -> int:
    """Return how many bytes of memory scatterings take, by `packet.cost_of`."""
    return sum(
        len(one) * one.cost if isinstance(one, Batch) else sum(part.size for part in one.parts)
        for one in scatterings
    )


def parts_of(scatterings: Sequence[Scattering | Batch]) -> int:
    """Return how many parts scatterings have."""
    return sum(len(one) if isinstance(one, Batch) else len(one.parts) for one in scatterings)


def _made(
    part_max: int, now: int, service: Service, parts: Sequence[tuple[int, bytes]]
) -> Scattering:
    """Return a scattering, which is not queued. Raises InvalidScattering."""
    if len(parts) != 1 and (not parts or len({to for to, _ in parts}) != len(parts)):
        raise InvalidScattering("a scattering addresses each of its receivers once, and one")
    made = []
    for to, payload in parts:
        if not 0 < to < 1 << 31:
            raise InvalidScattering(f"{to} is no process")
        if len(payload) > part_max:
            raise InvalidScattering(
                f"{len(payload)} bytes to process {to}: a part has {part_max} at most; send several"
            )
        made.append(Part(to, payload))
    return Scattering(0, service, tuple(made), now, len(made))


def in_turn(leaving: Sequence[Scattering | Batch]) -> Iterator[Scattering | Batch]:
    """Yield what leaves at once in the order in which it was queued, what is alike as a batch."""
    for _, group in groupby(sorted(leaving, key=_ticket), _alike):
        alike = [*group]
        single = [one for one in alike if isinstance(one, Scattering)]
        if len(single) < RUN_MIN or single[0].parts[0].packets > 1:
            yield from alike
        else:
            yield _as_batch(single)


def _ticket(one: Scattering | Batch) -> int:
    return one.tickets[0] if isinstance(one, Batch) else one.ticket


def _alike(one: Scattering | Batch) -> tuple[object, ...]:
    """What scatterings have in common that can be sent in one piece; of others it is unique."""
    if isinstance(one, Batch) or len(one.parts) != 1 or one.dropped:
        return (_ticket(one),)
    part = one.parts[0]
    return one.service, part.to, len(part.payload)


def _as_batch(alike: Sequence[Scattering]) -> Batch:
    """Return scatterings that were queued one by one, and leave at once, as a batch."""
    first = alike[0]
    tickets = [one.ticket for one in alike]
    payloads = [one.parts[0].payload for one in alike]
    return Batch(first.parts[0].to, first.service, tickets, payloads, first.queued_at)


def _shape(parts: Sequence[tuple[int, bytes]]) -> tuple[int, int] | None:
    """The receiver and the size of a scattering of one part."""
    if len(parts) != 1:
        return None
    ((to, payload),) = parts
    return to, len(payload)
