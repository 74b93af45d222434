"""docs/PROOF.md as text: every claim in figures, its goal, whether it is met, or stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from weir_lab.proofs.claims import Proof
from weir_lab.proofs.ledger import Kept, Ledger, is_met, missed, shown

_HEAD = """\
# Proof

Every figure that weir claims, and the command that measures it. `make proof` measures all figures
on real processes and plays the first 1,000 worlds of each kind; it takes at most 170 minutes on two
quiet cores. `make proof-worlds` plays the sweeps of worlds, of Raft and of barriers; it takes at
most 300 minutes. Both begin with what is stale. Either can be interrupted and started again: it
goes on with the next row, and a sweep with its next hundred seeds. No command lasts longer than 15
minutes. `ONLY=burst,latency` runs some rows, `STALE=1` leaves out what is not stale.

How to read the table:

* **value** is what the newest run measured, and **goal** what it must reach.
* **met** says whether the newest run met all goals of today on today's code. `stale` is not met.
* **runs** says how many runs there were and how many of them met the goals of today, as in `2 of
  3`. All runs are in [proof.jsonl](proof.jsonl), those that failed too.
* **code** says whether the newest run measured today's code: `today` or **stale**. Today's means
  that nothing changed in the modules that the processes of that run loaded (those of its child
  processes too), in the command and its settings, in the versions of Python and of the packages
  that were loaded. Comments and docstrings do not count, and neither does the commit. Runs without
  a list of what they loaded are stale.

Nothing is kept of a tree that differs from its commit. A machine that does other work at the same
time gives lower figures: the load before each run stands below.
"""


class _Line(NamedTuple):
    """A proof with its newest run."""

    proof: Proof
    row: Kept
    runs: int
    met_runs: int
    today: bool

    @property
    def met(self) -> bool:
        return self.today and is_met(self.proof, self.row)


def page(proofs: Iterable[Proof], ledger: Ledger) -> str:
    """Return the page for these proofs, in their order."""
    lines, missing = [], []
    for proof in proofs:
        if not (runs := ledger.runs(proof)):
            missing.append(proof.name)
            continue
        met = sum(is_met(proof, row) for row in runs)
        lines.append(_Line(proof, runs[-1], len(runs), met, ledger.is_today(proof, runs[-1])))
    parts = [_HEAD]
    if lines:
        parts.append(_summary(lines, len(missing)))
        parts.append("\n".join(_table(lines)) + "\n")
        parts.append("## How\n")
        parts.append("\n".join(_how(line) for line in lines) + "\n")
        parts.append("## Machines\n")
        parts.append("\n".join(_machines(lines)) + "\n")
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def _summary(lines: Sequence[_Line], missing: int) -> str:
    total, stale = len(lines) + missing, sum(not line.today for line in lines)
    met = sum(line.met for line in lines)
    missed_today = len(lines) - stale - met
    return (
        f"{met} of {total} proofs met their goals on today's code; {missed_today} missed a goal, "
        f"{stale} are stale, {missing} never ran.\n"
    )


def _table(lines: Sequence[_Line]) -> Iterator[str]:
    yield "| proof | figure | value | goal | met | runs | code | date |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for line in lines:
        goals = {goal.figure: f"{goal.relation} {_number(goal.value)}" for goal in line.proof.goals}
        figures = line.row["figures"]
        names = [*figures, *(name for name in line.proof.figures if name not in figures)]
        first = (
            _met(line),
            f"{line.met_runs} of {line.runs}",
            "today" if line.today else "**stale**",
            line.row["date"][:10],
        )
        for number, name in enumerate(names or [""]):
            rest = first if number == 0 else ("",) * len(first)
            title = line.proof.name if number == 0 else ""
            cells = (title, name, _number(figures.get(name)), goals.get(name, ""), *rest)
            yield f"| {' | '.join(cells)} |"


def _met(line: _Line) -> str:
    if not line.today:
        return "stale"
    if not line.met:
        return "**no**"
    return "yes" if line.proof.goals else "no goal"


def _how(line: _Line) -> str:
    row = line.row
    failure = row["failure"] or "; ".join(
        f"missed: {goal}" for goal in missed(line.proof, row["figures"])
    )
    return (
        f"* **{line.proof.name}**: {line.proof.what}. `{shown(line.proof)}`, {row['seconds']:g} s, "
        f"commit {row['commit']}, load before {row['load_before']:g}."
        f"{f' **{_cell(failure)}**' if failure else ''}"
    )


def _machines(lines: Sequence[_Line]) -> Iterator[str]:
    seen: dict[str, list[str]] = {}
    for line in lines:
        seen.setdefault(_machine(line.row["machine"]), []).append(line.proof.name)
    for text, names in seen.items():
        yield f"* {text}: {', '.join(names)}"


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpus']} CPUs ({machine['cpu']}), "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {'-'.join(machine['system'].split('-')[:2])}, "
        f"{machine['python']}, weir {machine['weir']}{', uvloop' if machine['uvloop'] else ''}"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
