"""`python -m weir.bench.proof`: run proofs, keep what came out, write docs/PROOF.md anew.

Every run appends a line to docs/proof.jsonl, whether it met its goals, missed them, or came to no
figure at all. The page shows the newest line of each proof.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from weir.bench.children import environment
from weir.bench.claims import Figure, Proof
from weir.bench.machine import Machine, this_machine
from weir.bench.proof_page import page
from weir.bench.proofs import PROOFS
from weir.errors import WeirError

ROWS = Path("docs/proof.jsonl")
PAGE = Path("docs/PROOF.md")
_TESTS = re.compile(r"\{TESTS:(\w+)\}")
_PASSED = re.compile(r"(\d+) passed")
#: Folders of a path, which say more of a machine than of a failure.
_FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")
_WORD_MAX = 300
_STOP_SECONDS = 60.0
#: How much of what a command printed is shown when it fails.
_TOLD_LINES = 200


class Row(msgspec.Struct, frozen=True):
    """What one proof came to, once."""

    proof: str
    what: str
    command: str
    figures: dict[str, float | None]
    goals: list[str]
    met: bool
    failure: str | None
    seconds: float
    load_before: float
    commit: str
    machine: Machine
    date: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proofs that are named, or all; 0 if all of them met their goals."""
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument("--only", default="", help="names, as in burst,latency; none: all")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    chosen = parser.parse_args(arguments)
    try:
        proofs = [] if chosen.page else selected(chosen.only)
        root = Path.cwd()
        if not (root / "docs").is_dir():
            raise WeirError("run this in the root of the repository: docs is kept there")
    except WeirError as error:
        print(error, file=sys.stderr)
        return 2
    met = True
    for proof in proofs:
        print(f"{proof.name}: {proof.what}", file=sys.stderr, flush=True)
        row = prove(proof, root)
        met = met and row.met
        with (root / ROWS).open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        write_page(root)
        print(f"{proof.name}: {told(row)}", flush=True)
    if chosen.page:
        write_page(root)
    return 0 if met else 1


def selected(names: str) -> list[Proof]:
    """Return the proofs that a list of names means; all for none. Raises `WeirError`."""
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if name not in PROOFS:
            raise WeirError(f"no proof {name!r}: there are {', '.join(PROOFS)}")
    return [PROOFS[name] for name in wanted or PROOFS]


def prove(proof: Proof, root: Path) -> Row:
    """Run one proof to its end."""
    load, began = os.getloadavg()[0], time.monotonic()
    output, failure = _run(proof, root)
    seconds = time.monotonic() - began
    figures = read(proof, output)
    missed = [
        f"{goal.figure} {goal.relation} {goal.value:g}"
        for goal in proof.goals
        if not goal.met(figures.get(goal.figure))
    ]
    return Row(
        proof=proof.name,
        what=proof.what,
        command=shown(proof),
        figures=figures,
        goals=[f"{goal.figure} {goal.relation} {goal.value:,g}" for goal in proof.goals],
        met=failure is None and not missed,
        failure=failure or (f"missed: {'; '.join(missed)}" if missed else None),
        seconds=round(seconds, 1),
        load_before=round(load, 2),
        commit=commit(root),
        machine=this_machine(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _run(proof: Proof, root: Path) -> tuple[str, str | None]:
    """Return what the command printed, and why it failed."""
    with subprocess.Popen(
        list(command(proof, root)),
        cwd=root,
        env={**environment(), **proof.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            out, said = process.communicate(timeout=proof.timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return "", f"it did not end within {proof.timeout_s:g} s"
        except BaseException:
            _end(process)
            raise
    sys.stderr.write(said)
    if process.returncode == 0:
        return out, None
    sys.stderr.write("\n".join(out.splitlines()[-_TOLD_LINES:]) + "\n")  # pytest says why in here
    last = [*out.splitlines(), *said.splitlines()][-1:] or ["no word"]
    return out, f"exit code {process.returncode}: {plain(last[0])}"


def _end(process: subprocess.Popen[str]) -> None:
    """End a command in a way that lets it stop what it started."""
    process.terminate()
    try:
        process.communicate(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def command(proof: Proof, root: Path) -> Iterator[str]:
    """Yield the words that are run, for this interpreter and these tests."""
    programs = {
        "weir": [sys.executable, "-P", "-m", "weir.cli"],
        "python": [sys.executable],
        "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
    }
    first = proof.words[0]
    yield from programs[first] if first in programs else [str(root / first)]
    for word in proof.words[1:]:
        if (variable := _TESTS.fullmatch(word)) is None:
            yield word
            continue
        found = sorted(
            path.relative_to(root).as_posix()
            for path in (root / "tests").rglob("test_*.py")
            if f'"{variable[1]}"' in path.read_text(encoding="utf-8")
        )
        # Nothing reads it: a path that is not there makes pytest fail, and say so.
        yield from found or [f"tests/no-test-reads-{variable[1]}"]


def shown(proof: Proof) -> str:
    """Return the command as a user types it."""
    set_first = [f"{name}={value}" for name, value in proof.environment.items()]
    words = [_TESTS.sub(r"(tests that read \1)", word) for word in proof.words]
    return " ".join([*set_first, *words])


def read(proof: Proof, output: str) -> dict[str, float | None]:
    """Return the figures that the output holds; None for one that it does not."""
    if "passed" in proof.figures:
        passed = _PASSED.search(output)
        return {"passed": float(passed[1]) if passed else None}
    found = parsed(output)
    return {name: _figure(found, figure) for name, figure in proof.figures.items()}


def parsed(output: str) -> Any:
    """Return one JSON document, or a list of the lines that are; None for neither."""
    try:
        return json.loads(output)
    except ValueError:
        pass
    lines = []
    for line in output.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines or None


def _figure(found: Any, figure: Figure) -> float | None:
    values = list(_at(found, figure.path.split(".")))
    if not values:
        return None
    value = max(values) if figure.highest else min(values)
    if not figure.over:
        return value
    under = list(_at(found, figure.over.split(".")))
    return value / under[0] if under and under[0] else None


def _at(found: Any, path: Sequence[str]) -> Iterator[float]:
    """Yield the numbers at a path; nothing where it leads nowhere."""
    if not path:
        if isinstance(found, int | float):
            yield float(found)
        return
    step, rest = path[0], path[1:]
    if isinstance(found, list):
        if step == "*":
            for item in found:
                yield from _at(item, rest)
        elif step.isdigit() and int(step) < len(found):
            yield from _at(found[int(step)], rest)
    elif isinstance(found, dict) and step in found:
        yield from _at(found[step], rest)


def plain(text: str) -> str:
    """Return a line as it may stand in the repository: short, and without folders of a machine."""
    return _FOLDERS.sub("", text.strip())[:_WORD_MAX]


def commit(root: Path) -> str:
    """Return the commit that is checked out, with a + if the tree differs from it."""
    try:
        at = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=root, text=True)
        changes = subprocess.check_output(
            ["git", "status", "--porcelain", "--", "src", "tests"], cwd=root, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return at.strip() + ("+" if changes.strip() else "")


def told(row: Row) -> str:
    """Return in a line what a row says."""
    figures = ", ".join(f"{name} {value}" for name, value in row.figures.items())
    return (
        f"{'met' if row.met else 'NOT MET'} ({figures}){': ' + row.failure if row.failure else ''}"
    )


def write_page(root: Path) -> None:
    """Write docs/PROOF.md from all rows there are."""
    rows = root / ROWS
    lines = rows.read_bytes().splitlines() if rows.exists() else []
    newest = {row["proof"]: row for row in map(json.loads, lines)}
    order = [newest[name] for name in PROOFS if name in newest]
    missing = [name for name in PROOFS if name not in newest]
    (root / PAGE).write_text(page(order, missing), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
