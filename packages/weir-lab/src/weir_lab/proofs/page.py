"""docs/PROOF.md as text: each figure with its goal, and whether it is met or stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from weir_lab.proofs.claims import Proof, Target
from weir_lab.proofs.ledger import Kept, Ledger, is_met, missed, shown

_HEAD = """\
# Proof

This page lists every figure that weir claims, and the command that measures it. Six targets of
make run them, each within a time on two idle cores that the list below shows. All of them start
with the proofs that are stale. You can interrupt a target and start it again: it continues with
the next proof, and within a sweep with the next hundred seeds. No single command takes longer than
15 minutes. `ONLY=burst,latency` runs only these proofs, and `STALE=1` runs only those that are
stale.

The columns of the table:

* **value** is what the newest run measured, and **goal** what it has to reach.
* **met** says whether the newest run reached all goals of today with the code of today. A stale
  proof is not met.
* **runs** says how many runs reached the goals of today, and how many runs there were, as in `2
  of 3`. [proof.jsonl](proof.jsonl) has all runs, also those that failed.
* **code** is `today` if the newest run measured the code of today, and **stale** otherwise. A run
  becomes stale when the code of a module changes that its processes or their child processes
  loaded; when the command or its settings change; or when the version of Python or of a loaded
  package changes. Changes of comments and docstrings do not count, nor does the commit. A run
  without a list of the modules that it loaded is stale.

A run is kept only if the working tree has no uncommitted changes. Other work on the machine makes
the figures worse, so the list below shows the load before each run.
"""


#: So many of what has a figure of its own are shown by name.
_LEAST = 10


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


def page(proofs: Iterable[Proof], ledger: Ledger, targets: Sequence[Target] = ()) -> str:
    """Return the page for these proofs, in their order, and for the targets that run them."""
    lines, missing = [], []
    for proof in proofs:
        if not (runs := ledger.runs(proof)):
            missing.append(proof.name)
            continue
        met = sum(is_met(proof, row) for row in runs)
        lines.append(_Line(proof, runs[-1], len(runs), met, ledger.is_today(proof, runs[-1])))
    parts = [_HEAD]
    if targets:
        parts.append("\n".join(_duration(target, ledger) for target in targets) + "\n")
    if lines:
        parts.append(_summary(lines, len(missing)))
        parts.append("\n".join(_table(lines)) + "\n")
        parts.append("## What each proof measures\n")
        parts.append("\n".join(_how(line) for line in lines) + "\n")
        parts.append("## Machines\n")
        parts.append("\n".join(_machines(lines)) + "\n")
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def _duration(target: Target, ledger: Ledger) -> str:
    seconds = sum(ledger.seconds(proof) or 0 for proof in target.proofs)
    guessed = sum(ledger.is_estimated(proof) for proof in target.proofs)
    return (
        f"* `make {target.name}` {target.what}: {len(target.proofs)} proofs in "
        f"{seconds / 60:.0f} of at most {target.minutes} minutes. The times of {guessed} are "
        "estimates, for no run of today's command is kept."
    )


def _summary(lines: Sequence[_Line], missing: int) -> str:
    total, stale = len(lines) + missing, sum(not line.today for line in lines)
    met = sum(line.met for line in lines)
    missed_today = len(lines) - stale - met
    return (
        f"Of {total} proofs, {met} meet their goals with the code of today, {missed_today} miss a "
        f"goal, {stale} are stale, and {missing} have never run.\n"
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
        f"* **{line.proof.name}**: {line.proof.what}. Measured by `{shown(line.proof)}` in "
        f"{row['seconds']:g} s, at commit {row['commit']}; the load before was "
        f"{row['load_before']:g}."
        f"{f' **{_cell(failure)}**' if failure else ''}{_least(row.get('named', {}))}"
    )


def _least(named: Mapping[str, float]) -> str:
    if not named:
        return ""
    lowest = sorted(named.items(), key=lambda one: (one[1], one[0]))[:_LEAST]
    return " The lowest: " + ", ".join(f"{name} {_number(value)}" for name, value in lowest) + "."


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
