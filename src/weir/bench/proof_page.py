"""docs/PROOF.md as text: every claim in figures, its goal beside it, met or not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_HEAD = """\
# Proof

Every figure that weir claims, measured by the command beside it. `make proof` runs them all and
writes this page; `make proof ONLY=burst,latency` runs some. A proof that failed stands here as
failed. All runs that were ever kept are in [proof.jsonl](proof.jsonl). Figures of a machine that
does other work at the same time are lower; the load before each run is told.
"""


def page(rows: Sequence[Row], missing: Sequence[str]) -> str:
    """Return the page: `rows` are the newest of each proof, `missing` names those without any."""
    parts = [_HEAD]
    if rows:
        met = sum(bool(row["met"]) for row in rows)
        parts.append(f"{met} of {len(rows)} proofs met their goals.\n")
        parts.append("\n".join(_table(rows)) + "\n")
        parts.append("## How\n")
        parts.append("\n".join(_how(row) for row in rows) + "\n")
        parts.append("## Machines\n")
        parts.append("\n".join(_machines(rows)) + "\n")
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| proof | figure | value | goal | met | commit | date |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        goals = dict(_goal(goal, row["figures"]) for goal in row["goals"])
        names = row["figures"] or {"": None}
        for number, (name, value) in enumerate(names.items()):
            first = number == 0
            yield (
                "| "
                + " | ".join(
                    (
                        row["proof"] if first else "",
                        name,
                        _number(value),
                        goals.get(name, ""),
                        _met(row) if first else "",
                        row["commit"] if first else "",
                        row["date"][:10] if first else "",
                    )
                )
                + " |"
            )


def _met(row: Row) -> str:
    if not row["met"]:
        return "**no**"
    return "yes" if row["goals"] else "no goal"


def _goal(goal: str, figures: Mapping[str, Any]) -> tuple[str, str]:
    """Split a goal into its figure's name and the rest; names may hold spaces."""
    name = max((name for name in figures if goal.startswith(f"{name} ")), key=len, default=goal)
    return name, goal[len(name) + 1 :]


def _how(row: Row) -> str:
    failure = f" **{_cell(row['failure'])}**" if row["failure"] else ""
    return (
        f"* **{row['proof']}**: {row['what']}. `{row['command']}`, {row['seconds']:g} s, "
        f"load before {row['load_before']:g}.{failure}"
    )


def _machines(rows: Sequence[Row]) -> Iterator[str]:
    seen: dict[str, list[str]] = {}
    for row in rows:
        machine = row["machine"]
        text = (
            f"{machine['cpus']} CPUs ({machine['cpu']}), "
            f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}, "
            f"{machine['python']}, weir {machine['weir']}"
            f"{', uvloop' if machine['uvloop'] else ''}"
        )
        seen.setdefault(text, []).append(row["proof"])
    for text, names in seen.items():
        yield f"* {text}: {', '.join(names)}"


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
