"""The small parts of the demo: signals, folders, bars, and what the crew reads."""

from __future__ import annotations

import io
import os
import signal
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from rich.console import Console

from weir.cli.process import Interrupted, Signals
from weir_lab.demo import run as demo
from weir_lab.demo.bars import Bars, Step
from weir_lab.demo.folders import check, keep, scratch_folder
from weir_lab.demo.play import messages_of
from weir_lab.demo.processes.crew import numbers_of
from weir_lab.demo.processes.worker import Status
from weir_lab.demo.tasks import PACED_FLIGHTS, paced_count


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_raised_only_where_it_is_asked_for(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Signals() as signals:
        signals.check()
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match=number.name):
            signals.check()
    assert signal.getsignal(number) is before


def test_a_second_signal_is_for_who_handled_them_before_where_one_is_enough() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals(once=True) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.number == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_scratch_folder_is_gone_after_an_error_too() -> None:
    def fail() -> None:
        with scratch_folder() as folder:
            folders.append(folder)
            (folder / "deep").mkdir()
            (folder / "deep/file").write_text("x")
            raise ZeroDivisionError

    folders: list[Path] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert not folders[0].exists()


def test_what_is_kept_replaces_nothing(tmp_path: Path) -> None:
    places = []
    for text in ("first", "second"):
        made = tmp_path / "made/delays"
        made.mkdir(parents=True)
        (made / "part").write_text(text)
        places.append(keep(made, tmp_path / "out"))
    assert [place.name for place in places] == ["delays", "delays-2"]
    assert [(place / "part").read_text() for place in places] == ["first", "second"]


def test_where_nothing_can_be_kept_is_told_at_once(tmp_path: Path) -> None:
    check(tmp_path)
    check(tmp_path / "new" / "folder")
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match="file"):
            check(place)
    with patch("os.access", lambda path, mode: path != tmp_path), pytest.raises(PermissionError):
        check(tmp_path / "new")


def test_the_crew_knows_whose_flight_it_reads() -> None:
    values = [b'{"origin":"EWR","n":4,"dest":"IAH"}', b'{"origin":"LGA","n":5}']
    assert numbers_of(values, "EWR") == [4, -1]
    assert numbers_of([], "EWR") == []
    with pytest.raises(msgspec.DecodeError):
        numbers_of([b"no flight"], "EWR")


def test_few_flights_are_paced_for_a_short_time() -> None:
    assert [paced_count(n) for n in (0, 9, 1_000, 100_000)] == [0, 0, 100, PACED_FLIGHTS]


def test_bars_show_every_part_on_a_terminal() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=True, width=100)) as bars:
        bars.show([Step("EWR", "waits", 0, None), Step("crew", "pulls", 0, None)])
        bars.show([Step("EWR", "at full speed", 1_000, 2_000), Step("crew", "pulls", 7, 2_000)])
    told = out.getvalue()
    assert told.index("EWR") < told.index("crew")
    assert "1,000 of   2,000" in told
    assert "at full speed" in told


def test_without_a_terminal_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir_lab.demo.bars._PLAIN_SECONDS", 0.0)
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=False, width=100)) as bars:
        bars.show([Step("EWR", "waits", 1_234, None)])
    assert out.getvalue().strip() == "0 s  EWR 1,234"


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "pyspark" else found(name))
    with pytest.raises(demo.NotInstalled, match=r"needs pyspark: pip install 'weir-lab'"):
        demo.run(None)


def test_readers_are_to_read_each_flight_of_both_topics_each() -> None:
    readers, crew, airport = (SimpleNamespace(status=Status()) for _ in range(3))
    parts: Any = (readers, crew, airport)
    assert [messages_of(part, parts[2:], parts[0]) for part in parts] == [None] * 3
    airport.status = Status("flies", 5, 10)
    assert [messages_of(part, parts[2:], parts[0]) for part in parts] == [60, 10, 10]
