"""Scatterings as a program hands them in: what can be sent, and what is alike.

Those that follow each other, and have one receiver and one size, are made in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from weir_toc.endpoint.events import Service
from weir_toc.endpoint.flow import Batch, Part, Scattering
from weir_toc.errors import InvalidScattering
from weir_toc.packet import PAYLOAD_BYTES_MAX

#: So many alike scatterings are handled in one piece.
RUN_MIN = 4


def made(
    part_max: int, now: int, service: Service, scatterings: Sequence[Sequence[tuple[int, bytes]]]
) -> list[Scattering | Batch]:
    """Return scatterings that are not queued, those that are alike in one piece."""
    found: list[Scattering | Batch] = []
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


def as_batch(alike: Sequence[Scattering]) -> Batch:
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
