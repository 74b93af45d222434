"""`weir lab`: real nodes, and those who mean them harm."""

from __future__ import annotations

from typing import Annotated

import typer

from weir_lab.cli.bench_runs import Json, stop_as_by_ctrl_c, usage

app = typer.Typer(
    name="lab", help="Attack real nodes, and see what that achieves.", no_args_is_help=True
)


@app.callback()
def lab() -> None:
    """Attack real nodes, and see what that achieves."""


@app.command()
def attack(
    publishes: Annotated[
        int, typer.Option(help="Honest publishes that are timed, alone and beside attacks.")
    ] = 2_000,
    as_json: Json = False,
) -> None:
    """Attack open and closed nodes and stolen data folders; print what each attack achieved.

    Exit code 1 if a closed node or its folder gave anything away.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("attack"):
        from weir_lab.attack.run import NAMES, Settings, measure
        from weir_lab.cli.measured import print_measured

        settings = Settings(publishes)
        settings.check()
    with stop_as_by_ctrl_c(), progress("attacks", 2 * len(NAMES)) as show:
        result = measure(settings, show)
    if as_json:
        print_measured("weir.lab.attack/1", settings, msgspec.structs.asdict(result))
    else:
        rows = [
            (name, *("yes" if name in of else "no" for of in
                     (result.of_open, result.of_closed)))
            for name in NAMES
        ]  # fmt: skip
        print_table(("ATTACK", "OPEN", "CLOSED"), rows)
        stolen = ", ".join(result.of_disk) or "nothing"
        print(f"stolen data folders gave away: {stolen}")
        print(
            f"an honest client's p99: {result.alone_p99_ms:.1f} ms alone, "
            f"{result.beside_p99_ms:.1f} ms beside attacks"
        )
    if result.achieved_closed or result.achieved_disk:
        raise typer.Exit(1)
