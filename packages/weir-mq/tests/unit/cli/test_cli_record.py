"""`--record`: a line for each message, which says enough to find what was lost or repeated."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.cli.record import Record, recording
from weir.cli.spark import verbs
from weir.client.producer.receipts import BatchReceipt, Receipt
from weir.model.message import Message

CLOCK_NS = 1_767_225_600_000_000_789


def lines(file: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_a_batch_is_a_line_for_each_message() -> None:
    file = io.BytesIO()
    record = Record(file, lambda: CLOCK_NS)
    record.sent("t", BatchReceipt(1, 0, 2, 7, 99, False), b"lock")
    record.sent("t", Receipt("t", 0, 3, 98), None)
    head = {"kind": "sent", "topic": "t", "at_us": CLOCK_NS // 1_000}
    assert lines(file) == [
        {**head, "partition": 1, "offset": 7, "stamp": 99, "key": "lock"},
        {**head, "partition": 1, "offset": 8, "stamp": 99, "key": "lock"},
        {**head, "partition": 0, "offset": 3, "stamp": 98, "key": None},
    ]
    assert record.elsewhere == 0


def test_a_batch_that_went_elsewhere_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records"
    with recording(path) as record:
        assert record is not None
        record.sent("t", BatchReceipt(1, 0, 5, -1, 99, False), None)
    assert path.read_text() == ""
    assert capsys.readouterr().err == (f"5 messages are not in {path}: their partition has ended\n")


def test_a_reader_numbers_what_it_receives() -> None:
    file = io.BytesIO()
    one, other = (Record(file, lambda: CLOCK_NS) for _ in range(2))
    message = Message(b"v", key=b"\xff", time=5, topic="t", partition=2, offset=7, stamp=9)
    one.received(message, "desk")
    one.received(message, None)
    other.received(message, None)
    told = lines(file)
    assert [(line["n"], line["cluster"]) for line in told] == [(0, "desk"), (1, None), (0, None)]
    readers = [line.pop("reader") for line in told]
    assert readers[0] == readers[1] != readers[2]
    assert told[0] == {
        "kind": "received", "topic": "t", "partition": 2, "offset": 7, "stamp": 9,
        "key_base64": "/w==", "time_us": 5, "at_us": CLOCK_NS // 1_000, "cluster": "desk", "n": 0,
    }  # fmt: skip


def test_a_file_goes_on_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "records"
    for _ in range(2):
        with recording(path) as record:
            assert record is not None
            record.sent("t", BatchReceipt(0, 0, 1, 0, 1, False), None)
    assert len(path.read_text().splitlines()) == 2
    with recording(None) as record:
        assert record is None


def test_what_jobs_cannot_do_is_said_before_spark_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["spark", "program"]) == 0
    assert Path(capsys.readouterr().out.strip()) == Path(verbs.__file__).resolve()
    assert main(["spark", "archive", "t", "lake", "--keep", "5m"]) == 2
    assert "give 1h or more" in capsys.readouterr().err
    assert main(["spark", "devices", "t", "out", "--gap", "0s"]) == 2
    assert "give 1s or more" in capsys.readouterr().err
