"""All runs of proofs that were kept, and whether each measured the code of today.

docs/proof.jsonl      one line for each run of a proof
docs/proof-steps.jsonl  the steps of sweeps, as far as they measured today's code
docs/proof-code.json  which modules and packages the newest runs and the steps loaded
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from weir_lab.bench.harness.machine import Machine
from weir_lab.proofs.claims import Proof
from weir_lab.proofs.source_hash import code_hash

ROWS = Path("docs/proof.jsonl")
STEPS = Path("docs/proof-steps.jsonl")
CODE = Path("docs/proof-code.json")
PAGE = Path("docs/PROOF.md")
#: What `make proof` writes itself, so that a change of it does not make the tree dirty.
WRITTEN = (ROWS, STEPS, CODE, PAGE)
#: How a failure begins that consists only of figures that missed their goals.
MISSED = "missed: "

Kept = Mapping[str, Any]


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one proof came to, once. `code` is a hash, `loaded` names what it was made of."""

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
    code: str = ""
    loaded: str = ""
    named: dict[str, float] = {}


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step of a sweep came to."""

    sweep: str
    seed: int
    seeds: int
    figures: dict[str, float | None]
    failure: str | None
    seconds: float
    load_before: float
    commit: str
    date: str
    code: str
    loaded: str
    named: dict[str, float] = {}


class Ledger:
    """The files of proofs below `root`, read once and written with each run."""

    def __init__(self, root: Path) -> None:
        """Read what was kept; a file that is not there holds nothing."""
        self._root = root
        self._rows: list[Kept] = _lines(root / ROWS)
        self._steps: list[Kept] = _lines(root / STEPS)
        path = root / CODE
        folded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._code = {name: _unfolded(one) for name, one in folded.items()}

    def runs(self, proof: Proof) -> list[Kept]:
        """Return all runs of a proof, the newest last."""
        return [row for row in self._rows if row["proof"] == proof.name]

    def is_today(self, proof: Proof, kept: Kept) -> bool:
        """Tell whether a run or a step measured today's code with today's command."""
        loaded = self._code.get(kept.get("loaded", ""))
        return (
            loaded is not None
            and set(proof.figures) <= set(kept["figures"])
            and kept["code"] == self.hash(proof, loaded)
        )

    def seconds(self, proof: Proof) -> float | None:
        """Return how long a proof takes: as its newest run that ended did, or as is estimated where
        that run had another command; None for neither.
        """
        if self.is_estimated(proof):
            return proof.seconds
        ended = self._ended(proof)
        return None if ended is None else float(ended["seconds"])

    def is_estimated(self, proof: Proof) -> bool:
        """Tell whether the estimate of a proof's time counts, and not that of its newest run."""
        ended = self._ended(proof)
        return proof.seconds is not None and (ended is None or ended["command"] != shown(proof))

    def _ended(self, proof: Proof) -> Kept | None:
        return next((row for row in reversed(self.runs(proof)) if _ended(row)), None)

    def is_stale(self, proof: Proof) -> bool:
        """Tell whether the newest run of a proof is missing, or measured other code."""
        runs = self.runs(proof)
        return not runs or not self.is_today(proof, runs[-1])

    def hash(self, proof: Proof, loaded: Sequence[str]) -> str:
        """Return the hash of what was loaded, as it is today, with the proof's settings."""
        return code_hash(self._root, loaded, shown(proof))

    def loaded(self, name: str) -> list[str]:
        """Return what a run or a step loaded."""
        return self._code[name]

    def note_loaded(self, loaded: list[str]) -> str:
        """Keep a list of what was loaded, and return its name."""
        name = hashlib.sha256("\n".join(loaded).encode()).hexdigest()[:8]
        self._code[name] = loaded
        return name

    def steps(self, proof: Proof) -> dict[int, Kept]:
        """Return the steps of a sweep that measured today's code, by their first seeds."""
        sweep = proof.sweep
        assert sweep is not None
        return {
            one["seed"]: one
            for one in self._steps
            if one["sweep"] == sweep.name and one["seeds"] == sweep.step
            if one["seed"] + one["seeds"] <= sweep.seeds and self.is_today(proof, one)
        }

    def add_step(self, proof: Proof, step: Step) -> None:
        """Keep a step, and drop those of its sweep that measured other code."""
        others = [one for one in self._steps if one["sweep"] != step.sweep]
        same = [
            one
            for one in self._steps
            if one["sweep"] == step.sweep and one["seed"] != step.seed
            if self.is_today(proof, one)
        ]
        self._steps = [*others, *same, msgspec.to_builtins(step)]
        lines = b"".join(msgspec.json.encode(one) + b"\n" for one in self._steps)
        (self._root / STEPS).write_bytes(lines)
        self._write_code()

    def add_row(self, row: Row) -> None:
        """Keep a run."""
        self._rows.append(msgspec.to_builtins(row))
        with (self._root / ROWS).open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        self._write_code()

    def _write_code(self) -> None:
        """Write what the newest runs and the steps loaded; nobody asks for that of older runs."""
        newest = {row["proof"]: row.get("loaded", "") for row in self._rows}
        named = {*newest.values(), *(one["loaded"] for one in self._steps)}
        self._code = {name: one for name, one in sorted(self._code.items()) if name in named}
        lines = [f"{json.dumps(name)}: {_folded(one)}" for name, one in self._code.items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (self._root / CODE).write_text(text, encoding="utf-8")


def shown(proof: Proof) -> str:
    """Return the command as a user types it."""
    set_first = [f"{name}={value}" for name, value in proof.environment.items()]
    words = []
    for word in proof.words:
        is_tests = word.startswith("{TESTS:")
        words.append(f"(tests that read {word[7:-1]})" if is_tests else word)
    return " ".join([*set_first, *words])


def missed(proof: Proof, figures: Mapping[str, float | None]) -> list[str]:
    """Return the goals that figures do not reach."""
    return [
        f"{goal.figure} {goal.relation} {goal.value:,g}"
        for goal in proof.goals
        if not goal.met(figures.get(goal.figure))
    ]


def is_met(proof: Proof, row: Kept) -> bool:
    """Tell whether a run met the goals of today; those of its day may have been others."""
    return _ended(row) and not missed(proof, row["figures"])


def dirt(root: Path) -> str | None:
    """Return why what is measured in a tree is not that of a commit; None if it is."""
    try:
        told = subprocess.check_output(
            ["git", "status", "--porcelain", "--untracked-files=all"],
            cwd=root, text=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "this is no git repository, so nobody can tell which code is measured"
    own = {path.as_posix() for path in WRITTEN}
    changed = [line[3:] for line in told.splitlines() if line[3:] not in own]
    if not changed:
        return None
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"commit first, or undo: {', '.join(changed[:3])}{more} changed"


def commit(root: Path) -> str:
    """Return the commit that is checked out."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.check_output(words, cwd=root, text=True).strip()


def _ended(row: Kept) -> bool:
    """Tell whether a run came to its end, with its goals met or missed."""
    failure = row["failure"]
    return failure is None or failure.startswith(MISSED)


def _lines(path: Path) -> list[Kept]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def _folded(loaded: Sequence[str]) -> str:
    """Return a list of files as JSON that says each folder once."""
    folders: dict[str, list[str]] = {}
    for name in loaded:
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, []).append(file)
    return json.dumps({folder: " ".join(files) for folder, files in folders.items()})


def _unfolded(folders: Mapping[str, str]) -> list[str]:
    return sorted(
        f"{folder}/{file}" if folder else file
        for folder, files in folders.items()
        for file in files.split(" ")
    )
