"""`weir sim`: attack the broker in a virtual world, and see whether its promises hold."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="sim",
    help="Test whole brokers in a virtual world of faulty disks and networks, and check promises.",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes that play seeds.")]


@app.callback(invoke_without_command=True)
def sim(context: typer.Context) -> None:
    """Test whole brokers in a virtual world of faulty disks and networks, and check promises."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _check_libraries() -> None:
    """Raise `MissingLibrary` now, and not as a crash of a broker that gets a packed batch."""
    from weir.codec import LZ4, ZSTD, deflate

    for kind in (LZ4, ZSTD):
        deflate(kind, b"")


def _check_names(shape: str | None, scenario: str) -> None:
    """Raise `BadParameter` for a shape or a scenario that there is not, or both."""
    from weir_lab.sim.run import SCENARIOS
    from weir_lab.sim.shape import SHAPES

    if shape is not None and shape not in SHAPES:
        raise typer.BadParameter(f"there are {', '.join(SHAPES)}", param_hint="--shape")
    if scenario and (scenario not in SCENARIOS or shape is not None):
        raise typer.BadParameter(
            f"there are {', '.join(SCENARIOS)}, which have no shape", param_hint="--scenario"
        )


@app.command()
def run(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    jobs: Jobs = 1,
    shape: Annotated[
        str | None,
        typer.Option(
            help="What is played: a name of weir_lab.sim.shape.SHAPES. Seeds draw it if none."
        ),
    ] = None,
    scenario: Annotated[
        str, typer.Option(help="Play this alone: users, log, tails or killers.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Play seeds: each is a BrokerSet under faults, then without, judged by what clients saw.

    A seed decides everything: the same code plays it the same way on each machine with the same
    release of Python. A broken promise is printed with what is needed to play it again. Exit code 1
    if there is one.
    """
    from weir.cli.output import hint, print_table, progress
    from weir_lab.cli.measured import print_measured
    from weir_lab.sim.run import run_many
    from weir_lab.sim.shape import SHAPES

    _check_names(shape, scenario)
    _check_libraries()

    began = time.monotonic()
    faults = operations = violations = done = 0
    least = {"operations": math.inf, "faults": math.inf, "virtual_seconds": math.inf}
    failed = []
    worlds_of: Counter[str] = Counter()
    with progress("seeds", seeds) as show:
        for outcome in run_many(seed, seeds, SHAPES[shape] if shape else None, jobs, scenario):
            faults += outcome.faults
            operations += outcome.operations
            violations += len(outcome.violations)
            done += 1
            worlds_of.update(outcome.promises)
            show(done)
            least = {name: min(value, getattr(outcome, name)) for name, value in least.items()}
            if outcome.violations:
                failed.append(outcome.seed)
                typer.echo(outcome.report(), err=True)
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        settings = {"seed": seed, "shape": shape, "scenario": scenario, "jobs": jobs}
        results = {
            "seeds": done,
            "faults": faults,
            "operations": operations,
            "operations_a_world": operations / done,
            "worlds_of": dict(sorted(worlds_of.items())),
            "violations": violations,
            "seconds": seconds,
            "least": least,
            "failed": failed,
        }
        print_measured("weir.sim.run/1", settings, results)
    else:
        columns = ("SEEDS", "FAULTS", "OPERATIONS", "VIOLATIONS", "SECONDS")
        print_table(columns, [(done, faults, operations, violations, seconds)])
        words = f"--shape {shape} " if shape else ""
        words += f"--scenario {scenario} " if scenario else ""
        again = f"Again: weir sim run {words}--seed {failed[0]} --seeds 1" if failed else ""
        hint(again or "Next: weir sim mutants")
    if failed:
        raise typer.Exit(1)


@app.command()
def mutants(
    only: Annotated[
        list[str] | None, typer.Option(help="Only this mutant; may be repeated.")
    ] = None,
    more: Annotated[
        int, typer.Option(min=0, help="Seeds to try from 0 on where the one that is kept fails.")
    ] = 120,
    jobs: Annotated[int, typer.Option(min=1, help="Mutants to hunt for at a time.")] = 1,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Write each seed that is found into weir's source.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove one rule of the code at a time: each time a checker must report a broken promise.

    Each mutant is played with the seed that is kept with it, and where that no longer catches it,
    for the code has changed, with others; --redraw keeps what is found. Exit code 1 if one is
    missed.
    """
    from weir.cli.output import print_table, progress
    from weir_lab.cli.measured import print_measured
    from weir_lab.sim.mutants.redraw import hunt_many, keep
    from weir_lab.sim.mutants.registry import KEPT

    unknown = set(only or ()) - {mutant.name for mutant in KEPT}
    if unknown:
        raise typer.BadParameter(f"no mutant {min(unknown)!r}", param_hint="--only")
    _check_libraries()
    chosen = [mutant for mutant in KEPT if not only or mutant.name in only]
    hunts = []
    with progress("mutants", len(chosen)) as show:
        for found in hunt_many(chosen, more, jobs):
            hunts.append(found)
            show(len(hunts))
            if redraw and found.caught and not found.kept:
                keep(found)
    missed = [one.name for one in hunts if not one.caught]
    if as_json:
        results = {
            "planted": len(hunts),
            "caught": len(hunts) - len(missed),
            "missed": len(missed),
            "mutants": hunts,
        }
        print_measured("weir.sim.mutants/1", {"only": only, "more": more}, results)
    else:
        print_table(
            ("MUTANT", "SEED", "BREAKS", "SECONDS", "THE RULE THAT IS GONE"),
            [
                (one.name, one.seed if one.caught else None, one.promise or "MISSED",
                 one.seconds, one.rule)
                for one in hunts
            ],
        )  # fmt: skip
        print(f"{len(hunts)} planted, {len(hunts) - len(missed)} caught, {len(missed)} missed")
    if missed:
        raise typer.Exit(1)


@app.command()
def power(
    bugs: Annotated[
        str, typer.Option(help="Only these planted bugs: names with commas between.")
    ] = "",
    first: Annotated[int, typer.Option(min=0, help="The first of them, by its place.")] = 0,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many of them. [default: all that follow]")
    ] = None,
    worlds: Annotated[int, typer.Option(min=1, help="Worlds to play with each at most.")] = 200,
    enough: Annotated[int, typer.Option(min=1, help="Catches after which one is done.")] = 5,
    jobs: Jobs = 1,
    kept: Annotated[
        Path | None,
        typer.Option(help="Results are kept here: what was measured on this very code stands."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure in how many worlds of the default distribution each planted bug is caught.

    Exit code 1 if one is caught in none of its worlds, if its planted line is run in none, or if
    fewer than one world in ten could have caught it.
    """
    from weir.cli.output import print_table, progress
    from weir_lab.cli.measured import print_measured
    from weir_lab.proofs.source_hash import worlds_hash
    from weir_lab.sim.mutants.registry import MUTANTS
    from weir_lab.sim.power import Kept, measure_many, together

    only = [name for name in bugs.split(",") if name]
    unknown = set(only) - {bug.name for bug in MUTANTS}
    if unknown:
        raise typer.BadParameter(f"no planted bug {min(unknown)!r}", param_hint="--bugs")
    _check_libraries()
    chosen = [bug for bug in MUTANTS if not only or bug.name in only]
    chosen = chosen[first : None if count is None else first + count]
    if not chosen:
        raise typer.BadParameter("no planted bug has this place", param_hint="--first")
    book = Kept(kept, worlds_hash() if kept else "", worlds, enough)
    found = [known for bug in chosen if (known := book.known.get(bug.name)) is not None]
    left = [bug for bug in chosen if bug.name not in book.known]
    with progress("planted bugs", len(chosen)) as show:
        for one in measure_many(left, worlds, enough, jobs):
            book.add(one)
            found.append(one)
            show(len(found))
    found.sort(key=lambda one: one.percent)
    whole = together(found)
    if as_json:
        import msgspec

        settings = {"bugs": only, "first": first, "count": count, "worlds": worlds}
        settings |= {"enough": enough, "jobs": jobs}
        results = {**msgspec.structs.asdict(whole), "bugs": found}
        print_measured("weir.sim.power/1", settings, results)
    else:
        print_table(
            ("PLANTED BUG", "CAUGHT %", "95 % FROM", "TO", "WORLDS", "TOUCHED", "SECONDS"),
            [
                (one.name, one.percent, one.low, one.high, one.worlds,
                 None if one.touched < 0 else one.touched, one.seconds)
                for one in found
            ],
        )  # fmt: skip
        print(
            f"{whole.planted} planted, {whole.missed} missed, {whole.untouched} not touched; "
            f"caught in {whole.median_caught:g} % of worlds at the median, "
            f"{whole.least_caught:g} % at least"
        )
    if whole.missed or whole.rare or whole.untouched:
        raise typer.Exit(1)


@app.command()
def barriers(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    as_json: Json = False,
) -> None:
    """Explore the rule of barriers: real Raft nodes and promises on bad networks and disks.

    Failures are printed with their seeds. Exit code 1 if there is one.
    """
    from weir.cli.output import print_json, print_table
    from weir_lab.barriers.rehearsal import Explorer

    began = time.process_time()
    promised = broken = committed = 0
    for one in range(seed, seed + seeds):
        try:
            checks = Explorer(one).explore()
        except AssertionError as error:
            broken += 1
            typer.echo(f"seed {one}: {error}", err=True)
            continue
        promised += checks.promised
        committed += checks.committed_through
    seconds = round(time.process_time() - began, 3)
    if as_json:
        counts = {"seeds": seeds, "broken": broken, "promised": promised, "committed": committed}
        results = {**counts, "seconds": seconds}
        print_json("weir.sim.barriers/1", {"seed": seed}, results)
    else:
        columns = ("SEEDS", "BROKEN", "BARRIERS BY PROMISE ALONE", "COMMITTED", "SECONDS")
        print_table(columns, [(seeds, broken, promised, committed, seconds)])
    if broken:
        raise typer.Exit(1)


@app.command()
def toc(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    planted: Annotated[
        bool, typer.Option("--planted", help="Plant a bug at a time, and see that it is caught.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Play the transport of packets on a datagram network that loses, repeats and reorders.

    A broken invariant of docs/PACKETS.md is printed with its seed. With --planted, each seed that
    is kept with a bug is tried first, then those from 0 on. Exit code 1 if an invariant is broken,
    or if a planted bug is not caught.
    """
    from weir.cli.output import hint, print_table, progress
    from weir_lab.cli.measured import print_measured
    from weir_lab.toc.scenario import play

    if planted:
        _hunt_in_packets(seeds, as_json)
        return
    began = time.monotonic()
    packets = delivered = failed = 0
    slowest = 0.0
    broken = {}
    used = time.process_time()
    with progress("seeds", seeds) as show:
        for number in range(seed, seed + seeds):
            started = time.process_time()
            outcome = play(number)
            slowest = max(slowest, time.process_time() - started)
            packets += outcome.packets
            delivered += outcome.delivered
            failed += outcome.failed
            if outcome.violations:
                broken[number] = outcome.violations
                typer.echo(f"seed {number}: " + "\n  ".join(outcome.violations[:5]), err=True)
                typer.echo(f"  Again: weir sim toc --seed {number} --seeds 1", err=True)
            show(number - seed + 1)
    results = {
        "seeds": seeds, "packets": packets, "delivered": delivered, "send_failed": failed,
        "violations": sum(map(len, broken.values())), "failed": [*broken],
        "seconds": round(time.monotonic() - began, 3),
        "cpu_seconds": round(time.process_time() - used, 3),
        "cpu_seconds_slowest": round(slowest, 3),
    }  # fmt: skip
    if as_json:
        print_measured("weir.sim.toc/1", {"seed": seed}, results)
    else:
        columns = ("SEEDS", "PACKETS", "DELIVERED", "SEND FAILED", "VIOLATIONS", "SECONDS")
        names = ("seeds", "packets", "delivered", "send_failed", "violations", "seconds")
        print_table(columns, [tuple(results[name] for name in names)])
        first = next(iter(broken), None)
        again = f"Again: weir sim toc --seed {first} --seeds 1" if broken else ""
        hint(again or "Next: weir sim toc --planted")
    if broken:
        raise typer.Exit(1)


def _hunt_in_packets(seeds: int, as_json: bool) -> None:
    """Plant one bug after the other in the transport of packets."""
    from weir.cli.output import print_table, progress
    from weir_lab.cli.measured import print_measured
    from weir_lab.toc.mutants import MUTANTS, hunt

    caught = []
    with progress("planted bugs", len(MUTANTS)) as show:
        for mutant in MUTANTS:
            caught.append((mutant.name, hunt(mutant, seeds)))
            show(len(caught))
    missed = [name for name, found in caught if found is None]
    if as_json:
        results = {
            "planted": len(caught), "caught": len(caught) - len(missed),
            "missed": len(missed), "bugs": dict(caught),
        }  # fmt: skip
        print_measured("weir.sim.toc.planted/1", {"seeds": seeds}, results)
    else:
        print_table(("SEED", "THE RULE THAT IS GONE"), [(at, name) for name, at in caught])
        found = len(caught) - len(missed)
        print(f"{len(caught)} planted, {found} caught, {len(missed)} missed")
    if missed:
        raise typer.Exit(1)
