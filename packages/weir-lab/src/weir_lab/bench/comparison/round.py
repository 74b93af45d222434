"""All sides at one amount: each in its turn, as often as is asked for, and how they stand then."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from weir.errors import WeirError
from weir_lab.bench.sides.contender import Contender

#: What results call their failings.
_FAILINGS = ("lost", "repeated", "reordered", "corrupt", "problems")
#: A side that is this many times worse than weir in its first turn cannot be the best: it gets no
#: other turn.
_FAR = 2

Say = Callable[[str], None]


class Rule(NamedTuple):
    """How sides are compared. `another_go`: a peer that fails is run once more; weir never is.
    Each is, beside whose run others used more than `foreign_cores_max` cores, up to `reruns` times;
    the run counts beside which they used least.
    """

    lower_wins: bool
    another_go: bool
    #: Odd.
    turns: int
    foreign_cores_max: float = math.inf
    reruns: int = 1


class Row(msgspec.Struct, frozen=True):
    """One side's result for one amount; `error` where it came to none."""

    side: str
    version: str
    settings: str
    synced: bool
    amount: int
    #: Of the shape: messages_per_s, seconds to the last confirm, or the median confirm in ms.
    figure: float | None
    clean: bool
    error: str | None
    #: Of the run that the figure is of.
    result: Any
    #: The figures of all turns; the one in the middle counts.
    turns: list[float] = []
    #: What others used beside that run, in cores; and how often a turn was run again for that.
    foreign_cores: float | None = None
    reruns: int = 0


class Round(msgspec.Struct, frozen=True):
    """All sides at one amount. A ratio above 1 says that weir was better so many times: in the way
    of the first row. Its other ways stand beside, and nobody is compared with them.
    """

    amount: int
    figure: float | None
    times_best_synced: float | None
    best_synced: str | None
    times_best: float | None
    best: str | None
    rows: list[Row]


def play(contenders: Sequence[Contender], rule: Rule, amount: int, say: Say) -> Round:
    """Run all sides, weir first; `say` is told each run. Raises what weir's own run raises."""
    runs: list[list[Row]] = [[] for _ in contenders]
    for turn in range(rule.turns):
        for one, so_far in zip(contenders, runs, strict=True):
            if turn == 0 or _may_be_best(so_far[0], runs[0][0], rule):
                so_far.append(_run(one, amount, rule, say))
    rows = [_middle(of_one) for of_one in runs]
    own = rows[0].figure
    others = [row for one, row in zip(contenders, rows, strict=True) if not one.own]
    synced, best_synced = _against(own, [row for row in others if row.synced], rule.lower_wins)
    any_kind, best = _against(own, others, rule.lower_wins)
    return Round(amount, own, synced, best_synced, any_kind, best, rows)


def line(row: Row) -> str:
    """Return what a row says, for a reader."""
    if row.error is not None:
        return f"{row.side}, {row.amount:,}: FAILED: {row.error}"
    figure = f"{row.side}, {row.amount:,}: {row.figure or 0:,.2f}"
    return figure if row.clean else f"{figure}, NOT CLEAN: {_lacking(row.result)}"


def _run(one: Contender, amount: int, rule: Rule, say: Say) -> Row:
    row = _row(one, amount)
    say(line(row))
    if rule.another_go and not one.own and not row.clean:
        # A peer that fails may not win by it, nor may one bad moment of its spoil the rest.
        row = _row(one, amount)
        say(f"once more: {line(row)}")
    reruns, last = 0, row
    while last.clean and _foreign(row) > rule.foreign_cores_max and reruns < rule.reruns:
        reruns += 1
        used, last = _foreign(last), _row(one, amount)
        say(f"once more, for others used {used:.2f} cores: {line(last)}")
        # What weir loses counts, beside whatever it did.
        if (one.own and not last.clean) or (last.clean and _foreign(last) < _foreign(row)):
            row = last
    return msgspec.structs.replace(row, reruns=reruns)


def _foreign(row: Row) -> float:
    return row.foreign_cores or 0.0


def _row(one: Contender, amount: int) -> Row:
    label, settings, synced, run_once, own = one
    try:
        version, settings, result, figure = run_once(amount)
    except (WeirError, OSError, TimeoutError) as error:
        if own:
            raise
        return Row(label, "", settings, synced, amount, None, False, str(error), {})
    clean, foreign = result.clean, getattr(result, "foreign_cores", None)
    return Row(
        label, version, settings, synced, amount, figure, clean, None, result, foreign_cores=foreign
    )


def _may_be_best(row: Row, own: Row, rule: Rule) -> bool:
    if row.figure is None or own.figure is None:
        return row is own
    if rule.lower_wins:
        return row.figure <= own.figure * _FAR
    return row.figure * _FAR >= own.figure


def _middle(rows: Sequence[Row]) -> Row:
    """Return the run whose figure is the median; the first that was not clean, if one was not."""
    if bad := next((row for row in rows if not row.clean or row.figure is None), None):
        return bad
    ordered = sorted(rows, key=lambda row: row.figure or 0)
    turns = [row.figure for row in rows if row.figure is not None]
    reruns = sum(row.reruns for row in rows)
    return msgspec.structs.replace(ordered[len(ordered) // 2], turns=turns, reruns=reruns)


def _against(
    own: float | None, rows: Sequence[Row], lower_wins: bool
) -> tuple[float | None, str | None]:  # fmt: skip
    """Return how many times better `own` is than the best of `rows`, and whose that is."""
    there = [(row.figure, row.side) for row in rows if row.figure]
    if not there or own is None:
        return None, None
    figure, side = min(there) if lower_wins else max(there)
    return (figure / own if lower_wins else own / figure), side


def _lacking(result: Any) -> str:
    """Return what a result tells of its failing."""
    told = [(name, getattr(result, name, None)) for name in _FAILINGS]
    return ", ".join(f"{name} {value}" for name, value in told if value) or "it says not why"
