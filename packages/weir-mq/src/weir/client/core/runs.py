"""Runs [first, next) of offsets, rising and apart: what a grant is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Run = tuple[int, int]


def within(runs: Iterable[Run], first: int, behind: int) -> Iterator[Run]:
    """Yield what of the runs lies in [first, behind)."""
    for begin, end in runs:
        begin, end = max(begin, first), min(end, behind)
        if begin < end:
            yield begin, end


def without(runs: Iterable[Run], holes: Sequence[Run]) -> list[Run]:
    """Return the runs without all that lies in the holes, which rise too."""
    left: list[Run] = []
    for begin, end in runs:
        for first, behind in holes:
            if behind <= begin:
                continue
            if first >= end:
                break
            if begin < first:
                left.append((begin, first))
            begin = behind
        if begin < end:
            left.append((begin, end))
    return left


def joined(offsets: Iterable[int]) -> list[Run]:
    """Return the runs of offsets that come in any order, each once."""
    runs: list[Run] = []
    first = behind = -1
    for offset in sorted(offsets):
        if offset != behind:
            if behind > first:
                runs.append((first, behind))
            first = offset
        behind = offset + 1
    if behind > first:
        runs.append((first, behind))
    return runs


def merged(runs: Iterable[Run]) -> list[Run]:
    """Return runs that come in any order as rising ones; those that touch become one."""
    found: list[Run] = []
    for first, behind in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(behind, found[-1][1]))
        else:
            found.append((first, behind))
    return found


def covers(runs: Iterable[Run], offset: int) -> bool:
    """Return whether one of the runs holds an offset."""
    return any(first <= offset < behind for first, behind in runs)
