"""`python -m weir_lab.proofs.run`: run proofs, keep what came out, write docs/PROOF.md anew.

Every run appends a line to docs/proof.jsonl, whether it met its goals, missed them, or came to no
figure at all. What is stale runs first: a proof that never ran, or whose code, command or packages
are not those that its newest run measured. A sweep of seeds keeps each of its steps, and goes on
where it was left. Nothing is kept of a tree that differs from its commit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from weir.errors import WeirError
from weir.server.interpreter import environment
from weir_lab.bench.harness.machine import this_machine
from weir_lab.proofs.catalogue import PROOFS, TARGETS
from weir_lab.proofs.claims import Figure, Proof
from weir_lab.proofs.ledger import MISSED, PAGE, Ledger, Row, Step, commit, dirt, missed, shown
from weir_lab.proofs.loaded_modules import VARIABLE
from weir_lab.proofs.page import page
from weir_lab.proofs.source_hash import loaded_code

#: The file that tests write their figures to.
_FIGURES = "WEIR_FIGURES"
_TESTS = re.compile(r"\{TESTS:(\w+)\}")
_PASSED = re.compile(r"(\d+) passed")
#: Folders of a path, which say more of a machine than of a failure.
_FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")
_WORD_MAX = 300
_STOP_SECONDS = 60.0
#: How much of what a command printed is shown when it fails.
_TOLD_LINES = 200


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command came to."""

    figures: dict[str, float | None]
    failure: str | None
    seconds: float
    load_before: float
    loaded: list[str]
    named: dict[str, float] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proofs that are named, or all; 0 if all of them met their goals.

    2: nothing was run, or something is not kept, for the tree differs from its commit.
    """
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument("--only", default="", help="names, as in burst,latency; none: all")
    parser.add_argument("--target", default="proof", choices=[one.name for one in TARGETS])
    parser.add_argument("--stale", action="store_true", help="leave out what is today's")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    chosen = parser.parse_args(arguments)
    root = Path.cwd()
    try:
        if not (root / "docs").is_dir():
            raise WeirError("run this in the root of the repository: docs is kept there")
        ledger = Ledger(root)
        proofs = selected(chosen.only, chosen.target)
        if not chosen.page:
            _check_clean(root)
    except WeirError as error:
        print(error, file=sys.stderr)
        return 2
    met = True
    for proof in [] if chosen.page else stale_first(proofs, ledger, chosen.stale):
        print(f"{proof.name}: {proof.what}", file=sys.stderr, flush=True)
        try:
            row = prove(proof, root, ledger)
        except WeirError as error:
            print(f"{proof.name} is not kept: {error}", file=sys.stderr)
            return 2
        met = met and row.met
        ledger.add_row(row)
        write_page(root, ledger)
        print(f"{proof.name}: {told(row)}", flush=True)
    if chosen.page:
        write_page(root, ledger)
    return 0 if met else 1


def selected(names: str, target: str) -> list[Proof]:
    """Return the proofs that a list of names means; for none those of a target of make.

    Raises `WeirError` for a name that is no proof's.
    """
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if name not in PROOFS:
            raise WeirError(f"no proof {name!r}: there are {', '.join(PROOFS)}")
    of_target = [proof for one in TARGETS if one.name == target for proof in one.proofs]
    return [PROOFS[name] for name in wanted] or of_target


def stale_first(proofs: Sequence[Proof], ledger: Ledger, only: bool) -> list[Proof]:
    """Return stale proofs, in their order, and then the rest, the oldest first, unless `only`."""
    stale = [proof for proof in proofs if ledger.is_stale(proof)]
    if only:
        return stale
    rest = [proof for proof in proofs if proof not in stale]
    return [*stale, *sorted(rest, key=lambda proof: str(ledger.runs(proof)[-1]["date"]))]


def prove(proof: Proof, root: Path, ledger: Ledger) -> Row:
    """Run one proof to its end. Raises `WeirError` if the tree changes meanwhile."""
    ran = _measure(proof, root) if proof.sweep is None else _sweep(proof, root, ledger)
    lacks = missed(proof, ran.figures)
    return Row(
        proof=proof.name,
        what=proof.what,
        command=shown(proof),
        figures=ran.figures,
        goals=[f"{goal.figure} {goal.relation} {goal.value:,g}" for goal in proof.goals],
        met=ran.failure is None and not lacks,
        failure=ran.failure or (f"{MISSED}{'; '.join(lacks)}" if lacks else None),
        seconds=ran.seconds,
        load_before=ran.load_before,
        commit=commit(root),
        machine=this_machine(),
        date=_now(),
        code=ledger.hash(proof, ran.loaded),
        loaded=ledger.note_loaded(ran.loaded),
        named=ran.named,
    )


def _sweep(proof: Proof, root: Path, ledger: Ledger) -> Ran:
    """Play the steps of a sweep that today's code has not played, and return all of them as one."""
    sweep = proof.sweep
    assert sweep is not None
    done = ledger.steps(proof)
    left = [seed for seed in range(0, sweep.seeds, sweep.step) if seed not in done]
    with ThreadPoolExecutor(sweep.at_once) as pool:
        for first in range(0, len(left), sweep.at_once):
            seeds = left[first : first + sweep.at_once]
            words = [{"{SEED}": str(seed), "{SEEDS}": str(sweep.step)} for seed in seeds]
            for seed, ran in zip(
                seeds, pool.map(partial(_measure, proof, root), words), strict=True
            ):
                if None in ran.figures.values():
                    # Nothing can be said of its seeds: the next run plays them again.
                    failure = f"seeds from {seed} on: {ran.failure or 'no figures'}"
                    empty = dict.fromkeys(proof.figures)
                    return Ran(empty, failure, ran.seconds, ran.load_before, ran.loaded)
                ledger.add_step(proof, _step(proof, seed, ran, root, ledger))
                print(f"{proof.name}: seeds {seed} to {seed + sweep.step - 1}", flush=True)
    steps = [one for _, one in sorted(ledger.steps(proof).items())]
    if len(steps) * sweep.step < sweep.seeds:
        raise WeirError("its code changed while it ran")
    failures = [f"seeds from {one['seed']} on: {one['failure']}" for one in steps if one["failure"]]
    return Ran(
        figures={
            name: figure.of_steps([one["figures"][name] for one in steps])
            for name, figure in proof.figures.items()
        },
        failure=failures[0] if failures else None,
        seconds=round(sum(one["seconds"] for one in steps) / sweep.at_once, 1),
        load_before=max(one["load_before"] for one in steps),
        loaded=sorted({name for one in steps for name in ledger.loaded(one["loaded"])}),
        named={name: value for one in steps for name, value in one.get("named", {}).items()},
    )


def _step(proof: Proof, seed: int, ran: Ran, root: Path, ledger: Ledger) -> Step:
    assert proof.sweep is not None
    return Step(
        sweep=proof.sweep.name,
        seed=seed,
        seeds=proof.sweep.step,
        figures=ran.figures,
        failure=ran.failure,
        seconds=ran.seconds,
        load_before=ran.load_before,
        commit=commit(root),
        date=_now(),
        code=ledger.hash(proof, ran.loaded),
        loaded=ledger.note_loaded(ran.loaded),
        named=ran.named,
    )


def _measure(proof: Proof, root: Path, seeds: Mapping[str, str] | None = None) -> Ran:
    """Run the command once; `seeds` replaces words. Raises `WeirError` if the tree changes."""
    load, began = os.getloadavg()[0], time.monotonic()
    words = [(seeds or {}).get(word, word) for word in command(proof, root)]
    with tempfile.TemporaryDirectory(prefix="weir-proof-") as name:
        loaded, figures = Path(name) / "loaded", Path(name) / "figures"
        more = {**proof.environment, VARIABLE: str(loaded), _FIGURES: str(figures)}
        output, failure = _run(words, root, more, proof.timeout_s)
        seconds = time.monotonic() - began
        from_tests = _read(figures).splitlines()
        code = loaded_code(root, _read(loaded).splitlines(), words)
    _check_clean(root)
    found = read(proof, output, [json.loads(line) for line in from_tests])
    named = read_named(proof, output)
    return Ran(found, failure, round(seconds, 1), round(load, 2), code, named)


def _check_clean(root: Path) -> None:
    if dirty := dirt(root):
        raise WeirError(f"no figure is kept of a tree that differs from its commit: {dirty}")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _run(
    words: Sequence[str], root: Path, more: Mapping[str, str], timeout_s: float
) -> tuple[str, str | None]:
    """Return what the command printed, and why it failed."""
    with subprocess.Popen(
        words,
        cwd=root,
        env={**environment(), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            out, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return "", f"it did not end within {timeout_s:g} s"
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
            for path in sorted(root.glob("packages/*/tests/**/test_*.py"))
            if f'"{variable[1]}"' in path.read_text(encoding="utf-8")
        )
        # Nothing reads it: a path that is not there makes pytest fail, and say so.
        yield from found or [f"tests/no-test-reads-{variable[1]}"]


def read(
    proof: Proof, output: str, from_tests: Sequence[Mapping[str, float]] = ()
) -> dict[str, float | None]:
    """Return the figures that the output holds, or tests told; None for one that is missing."""
    if _runs_tests(proof):
        passed = [{"passed": float(count)} for count in _PASSED.findall(output)[-1:]]
        figures: dict[str, float | None] = {}
        for name, figure in proof.figures.items():
            values = [one[figure.path] for one in (*from_tests, *passed) if figure.path in one]
            figures[name] = float(figure.of_steps(values)) if values else None
        return figures
    found = parsed(output)
    return {name: _figure(found, figure) for name, figure in proof.figures.items()}


def read_named(proof: Proof, output: str) -> dict[str, float]:
    """Return the figures of what the output names; none where it names nothing."""
    things, _, figure = proof.named.partition(".")
    found = parsed(output)
    listed = found.get(things, []) if isinstance(found, dict) else []
    return {str(one["name"]): float(one[figure]) for one in listed}


def _runs_tests(proof: Proof) -> bool:
    first, paths = proof.words[0], [figure.path for figure in proof.figures.values()]
    # A script may run pytest. What a verb of weir calls `passed` is a figure of its JSON.
    return first == "pytest" or (first != "weir" and "passed" in paths)


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
        elif step.startswith("["):
            for item in found:
                if isinstance(item, dict) and item.get("side") == step[1:-1]:
                    yield from _at(item, rest)
    elif isinstance(found, dict) and step in found:
        yield from _at(found[step], rest)


def plain(text: str) -> str:
    """Return a line as it may stand in the repository: short, and without folders of a machine."""
    return _FOLDERS.sub("", text.strip())[:_WORD_MAX]


def told(row: Row) -> str:
    """Return in a line what a row says."""
    figures = ", ".join(f"{name} {value}" for name, value in row.figures.items())
    return (
        f"{'met' if row.met else 'NOT MET'} ({figures}){': ' + row.failure if row.failure else ''}"
    )


def write_page(root: Path, ledger: Ledger) -> None:
    """Write docs/PROOF.md from all runs there are."""
    (root / PAGE).write_text(page(PROOFS.values(), ledger, TARGETS), encoding="utf-8")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
