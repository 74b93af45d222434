"""Rows that jobs wrote are compared with what was sent: whatever is wrong is found and named."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir_lab.spark_cluster import flights
from weir_lab.spark_cluster.flights import RowsDiffer, check_delays, check_rows, committed_files
from weir_lab.spark_cluster.run import check_environments
from weir_lab.spark_cluster.standalone import SparkFailed

SENT = [[b"a", b"b"], [b"c"]]
LIMIT = 200


def written(out: Path, *files: list[tuple[int, int, bytes]], committed: bool = True) -> None:
    """Files as Spark's sink leaves them, each of a micro-batch of its own."""
    (out / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(files):
        path = out / f"part-{number}-{committed}.parquet"
        partitions, offsets, values = zip(*rows, strict=True)
        pq.write_table(
            pa.table({"partition": partitions, "offset": offsets, "value": values}), path
        )
        if committed:
            line = json.dumps({"path": f"file://{path}", "action": "add"})
            (out / "_spark_metadata" / str(number)).write_text(f"v1\n{line}\n")


def test_rows_are_right_in_any_order_and_files(tmp_path: Path) -> None:
    written(tmp_path, [(1, 0, b"c"), (0, 1, b"b")], [(0, 0, b"a")])
    assert len(check_rows(tmp_path, SENT)) == 3


def test_files_of_tries_that_failed_do_not_count(tmp_path: Path) -> None:
    written(tmp_path, [(1, 0, b"c"), (0, 1, b"b"), (0, 0, b"a")])
    written(tmp_path, [(0, 0, b"a")], committed=False)
    assert len(check_rows(tmp_path, SENT)) == 3
    assert len([*committed_files(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(0, 0, b"a"), (0, 1, b"b")], r"2 instead of 3; 1 are lost, .* lost one is \(1, 0\)"),
        ([(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c"), (1, 0, b"c")], "0 are lost, 1 repeated"),
        ([(0, 0, b"a"), (0, 1, b"x"), (1, 0, b"c")], "values differ"),
        ([(0, 0, b"b"), (0, 1, b"a"), (1, 0, b"c")], "values differ"),
    ],
)
def test_what_is_wrong_with_rows_is_named(
    tmp_path: Path, rows: list[tuple[int, int, bytes]], says: str
) -> None:
    written(tmp_path, rows)
    with pytest.raises(RowsDiffer, match=says):
        check_rows(tmp_path, SENT)


@pytest.fixture(scope="module")
def wanted() -> pa.Table:
    """What the job must write."""
    return flights.delays(LIMIT)


def test_delays_are_those_of_the_flights(tmp_path: Path, wanted: pa.Table) -> None:
    assert sum(wanted["flights"].to_pylist()) == LIMIT
    path = tmp_path / "delays.parquet"
    # As another sum of the same numbers gives it.
    means = [one and one * (1 + 1e-12) for one in wanted["mean_delay"].to_pylist()]
    at = wanted.schema.get_field_index("mean_delay")
    pq.write_table(wanted.set_column(at, "mean_delay", pa.array(means, pa.float64())), path)
    assert check_delays(path, wanted) == len(wanted)


@pytest.mark.parametrize("column", ["flights", "cancelled", "mean_delay", "max_delay"])
def test_one_wrong_figure_is_found(tmp_path: Path, column: str, wanted: pa.Table) -> None:
    at = wanted.schema.get_field_index(column)
    figures = wanted[column].to_pylist()
    figures[1] = (figures[1] or 0) + 1
    path = tmp_path / "delays.parquet"
    pq.write_table(wanted.set_column(at, column, pa.array(figures)), path)
    with pytest.raises(RowsDiffer, match=f"delays: {column} of "):
        check_delays(path, wanted)
    pq.write_table(wanted.slice(1), path)
    with pytest.raises(RowsDiffer, match=r"\d+ rows instead of"):
        check_delays(path, wanted)


def places(*found: tuple[str, str]) -> pa.Table:
    environments, packages = zip(*found, strict=True)
    return pa.table({"environment": environments, "package": packages})


def test_rows_are_read_where_workers_unpacked_the_environment() -> None:
    work = [Path("/run/worker-1/work"), Path("/run/worker-2/work")]
    one, two = (f"{folder}/app-1/0/environment" for folder in work)
    right = [(one, f"{one}/lib/weir/__init__.py"), (two, f"{two}/lib/weir/__init__.py")]
    assert check_environments(places(*right, right[0]), work) == (one, two)
    with pytest.raises(SparkFailed, match="no row was read by the worker of /run/worker-2"):
        check_environments(places(right[0]), work)
    for wrong in ((one, "/src/weir/__init__.py"), ("/venv", "/venv/lib/weir/__init__.py")):
        with pytest.raises(SparkFailed, match="which no worker unpacked"):
            check_environments(places(*right, wrong), work)
