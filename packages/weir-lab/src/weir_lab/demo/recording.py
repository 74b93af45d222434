"""A run of the demo over time: rates, latencies and plane histories, from the ledgers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weir_lab.demo.flights import ORIGINS
from weir_lab.demo.ledger import NEVER, Columns, Numbers, Sent, first_receipts

#: So many points make a curve.
_BINS = 120
_PLANES = 4


@dataclass(frozen=True, slots=True)
class Recording:
    """All messages, airport after airport in the order of `ORIGINS`, by number.

    Times are in µs since 1970, `NEVER` where it has not happened.
    """

    sent_us: Numbers
    confirmed_us: Numbers
    delivered_us: Numbers
    offsets: Numbers
    airports: Numbers

    @classmethod
    def of(cls, sent: Mapping[str, Sent], received: Mapping[str, Columns]) -> Recording:
        """Join the airports' ledgers with the crew's, both by airport."""
        counts = [len(sent[origin].sent_us) for origin in ORIGINS]
        came = [
            first_receipts(received[o], count) for o, count in zip(ORIGINS, counts, strict=True)
        ]
        return cls(
            np.concatenate([sent[origin].sent_us for origin in ORIGINS]),
            np.concatenate([sent[origin].confirmed_us for origin in ORIGINS]),
            np.concatenate(came),
            np.concatenate([sent[origin].offsets for origin in ORIGINS]),
            np.repeat(np.arange(len(ORIGINS)), counts),
        )

    @property
    def begin_us(self) -> int:
        """When the first message was sent; 0 if none was."""
        sent = self.sent_us[self.sent_us != NEVER]
        return int(sent.min()) if len(sent) else 0


Points = list[tuple[float, float]]


def rates(recording: Recording) -> dict[str, Points]:
    """Return messages a second over seconds since the first send: sent, confirmed, delivered."""
    edges = _edges(recording)
    middle, width = (edges[:-1] + edges[1:]) / 2e6, np.diff(edges) / 1e6
    curves = {}
    for name, column in (
        ("sent", recording.sent_us),
        ("confirmed", recording.confirmed_us),
        ("delivered", recording.delivered_us),
    ):
        counts, _ = np.histogram(column[column != NEVER] - recording.begin_us, edges)
        curves[name] = list(zip(middle.tolist(), (counts / width).tolist(), strict=True))
    return curves


def latencies(recording: Recording) -> dict[str, Points]:
    """Return latencies from the send in ms over seconds since the first send: p50 and p99.

    A moment at which nothing was sent has the value NaN.
    """
    edges = _edges(recording)
    middle = ((edges[:-1] + edges[1:]) / 2e6).tolist()
    curves: dict[str, Points] = {}
    for what, column in (
        ("confirm", recording.confirmed_us),
        ("delivery", recording.delivered_us),
    ):
        happened = (recording.sent_us != NEVER) & (column != NEVER)
        since = recording.sent_us[happened] - recording.begin_us
        spans = (column[happened] - recording.sent_us[happened]) / 1_000
        order = np.argsort(since, kind="stable")
        since, spans = since[order], spans[order]
        bounds = np.searchsorted(since, edges)
        pieces = [spans[lo:hi] for lo, hi in pairwise(bounds)]
        for share in (50, 99):
            values = [float(np.percentile(p, share)) if len(p) else float("nan") for p in pieces]
            curves[f"{what} p{share}"] = list(zip(middle, values, strict=True))
    return curves


@dataclass(frozen=True, slots=True)
class History:
    """One plane's flights as the crew saw them.

    `flights`: (airport's place in `ORIGINS`, day of the year, place in the order of arrival) in the
    order of departure. `inverted`: neighbours in it that arrived the other way round. `misplaced`:
    neighbours from one airport whose offsets lie the other way round, which must not be.
    """

    plane: str
    flights: Sequence[tuple[int, float, int]]
    inverted: int
    misplaced: int


def histories(
    recording: Recording, planes: Sequence[str | None], departures_us: Sequence[int]
) -> list[History]:
    """Return the histories of the planes that changed most between airports.

    `planes` and `departures_us` say of each message, in the recording's order, which plane it is
    about and when that was to leave.
    """
    seen: dict[str, Counter[int]] = {}
    for plane, airport in zip(planes, recording.airports.tolist(), strict=True):
        if plane is not None:
            seen.setdefault(plane, Counter())[airport] += 1
    # Flights away from the airport that a plane mostly leaves from.
    away = {plane: airports.total() - max(airports.values()) for plane, airports in seen.items()}
    chosen = sorted((plane for plane in away if away[plane]), key=lambda p: (-away[p], p))
    return [_history(recording, p, planes, departures_us) for p in chosen[:_PLANES]]


def _history(
    recording: Recording, plane: str, planes: Sequence[str | None], departures_us: Sequence[int]
) -> History:
    of_plane = [n for n, its in enumerate(planes) if its == plane]
    by_departure = sorted(of_plane, key=lambda n: (departures_us[n], n))
    came, offsets = recording.delivered_us, recording.offsets
    arrived = [n for n in of_plane if came[n] != NEVER]
    arrived.sort(key=lambda n: (came[n], recording.airports[n], offsets[n]))
    place = {n: at for at, n in enumerate(arrived)}
    first = min(departures_us, default=0)
    flights = [
        (int(recording.airports[n]), (departures_us[n] - first) / 86_400e6, place[n])
        for n in by_departure
        if n in place
    ]
    inverted = sum(a[2] > b[2] for a, b in pairwise(flights))
    misplaced = 0
    for airport in range(len(ORIGINS)):
        there = [offsets[n] for n in by_departure if recording.airports[n] == airport]
        misplaced += sum(a > b for a, b in pairwise(there) if NEVER not in (a, b))
    return History(plane, flights, inverted, misplaced)


def _edges(recording: Recording) -> Numbers:
    columns = (recording.sent_us, recording.confirmed_us, recording.delivered_us)
    last = max((int(column.max()) for column in columns if len(column)), default=0)
    span = max(last - recording.begin_us, _BINS)
    return np.linspace(0, span + 1, _BINS + 1).astype(np.int64)
