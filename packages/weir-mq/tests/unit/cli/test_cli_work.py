"""`weir work`: what it says to names that lead nowhere, and how it tells what happens."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from weir.app.core.scaling import Look
from weir.app.supervisor import (
    Blind,
    Ended,
    Figures,
    Killed,
    Plan,
    Refused,
    Scaled,
    Seen,
    Started,
    Supervisor,
)
from weir.app.worker import starting
from weir.cli.main import main
from weir.cli.work import _telling, _while_heard, metrics_text

PLAN = Plan("ledger", "weir://localhost", 1, 8, 30.0, 10.0)
MODULES = {
    "one_app": "import weir\napp = weir.App()\n@app.subscribe('a', cluster='c')\ndef f(m): ...\n",
    "two_clusters": (
        "import weir\napp = weir.App()\n@app.subscribe('a', cluster='c')\n"
        "@app.subscribe('a', cluster='d')\ndef f(m): ...\n"
    ),
    "no_handler": "import weir\napp = weir.App()\n",
    "no_app": "app = 3\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WEIR_URL", raising=False)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nowhere:app"], "no module 'nowhere' in "),
        (["one_app"], "'one_app': write MODULE:APP"),
        (["one_app:other"], "'other' of one_app is no weir.App: there is app"),
        (["no_app:app"], "'app' of no_app is no weir.App: make one with weir.App()"),
        (["no_handler:app"], "the app has no handler: decorate one"),
        (["two_clusters:app"], "there are c, d: name one with --cluster"),
        (["one_app:app", "--cluster", "x"], "no handler of cluster 'x': there are c"),
        (["one_app:app", "--min", "3", "--max", "2"], "3 to 2 processes"),
        (["one_app:app", "--cool-down", "soon"], "'soon' is no duration"),
        (["one_app:app", "--url", "http://x"], "'http://x' is no address"),
        (["one_app:app", "--metrics", "6801"], "--metrics is '6801': write HOST:PORT"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    folder: Path, words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["work", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert what in err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import there_is_none\n", "ModuleNotFoundError: No module named 'there_is_none'\n"),
        ("int('three')\n", "invalid literal for int() with base 10: 'three'\n"),
        ("def broken(:\n", "SyntaxError: invalid syntax\n"),
    ],
)
def test_what_a_module_raises_is_shown_from_its_own_line_on(
    folder: Path, text: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text(text, encoding="utf-8")
    assert main(["work", "broken:app"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(error)
    assert err.count("  File ") == 1
    assert f'{folder}/broken.py", line 1' in err


def test_people_get_a_line_for_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    tell = _telling(PLAN, as_json=False)
    tell(Started(7))
    tell(Scaled(1, 8, 99_000, 99_500, "99,000 wait"))
    tell(Ended(7, -9, 0.1))
    tell(Ended(8, 1, 0.2))
    tell(Killed(9, 15.0))
    tell(Refused("no memory", 30.0))
    tell(Blind("no broker"))
    tell(Seen())
    tell(Blind("no leader", away=False))
    tell(Figures("http://127.0.0.1:1/metrics"))
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split("  ", 1)[1] for line in err.splitlines()] == [
        "1 -> 8 processes: 99,000 wait",
        "process 7 ended (signal 9): another in 0.1 s",
        "process 8 ended (code 1): another in 0.2 s",
        "process 9 did not end within 15 s, and was killed",
        "no process can be started (no memory): again in 30 s",
        "weir://localhost is away: waiting for it (Ctrl-C ends); no broker",
        "weir://localhost is back",
        "the backlog is not known, so the number of processes stays: no leader",
        "figures at http://127.0.0.1:1/metrics",
    ]


def test_programs_get_a_line_for_everything(capsys: pytest.CaptureFixture[str]) -> None:
    tell = _telling(PLAN, as_json=True)
    tell(Started(7))
    tell(Scaled(1, 8, 99_000, 99_500, "99,000 wait"))
    started, scaled = map(json.loads, capsys.readouterr().out.splitlines())
    assert (started["event"], started["process"], started["cluster"]) == ("started", 7, "ledger")
    assert (scaled["event"], scaled["before"], scaled["wanted"]) == ("scaled", 1, 8)
    assert scaled["time"] > 0


def test_a_collector_gets_what_is_wanted_and_what_waits_once_that_is_known() -> None:
    app = weir.App()

    @app.subscribe("unlocks", cluster="ledger")
    async def record(message: weir.Message) -> None: ...

    supervisor = Supervisor(app, PLAN, starting(["/bin/cat"]), print)
    told = dict(
        line.split(" ") for line in metrics_text(supervisor, PLAN).splitlines() if line[0] != "#"
    )
    assert told == {
        'weir_work_processes_wanted{cluster="ledger"}': "1",
        'weir_work_processes{cluster="ledger"}': "0",
        'weir_work_processes_least{cluster="ledger"}': "1",
        'weir_work_processes_most{cluster="ledger"}': "8",
    }
    supervisor.seen = Look(0.0, 100, 40, 30, 1, 2)
    text = metrics_text(supervisor, PLAN)
    assert 'weir_work_waiting_messages{cluster="ledger"} 30\n' in text
    assert 'weir_work_left_messages{cluster="ledger"} 40\n' in text
    assert text.count("# TYPE weir_work_") == 6


def test_it_stops_when_nobody_reads_what_it_tells() -> None:
    stop = asyncio.Event()

    def tell(event: object) -> None:
        if event == Started(8):
            raise BrokenPipeError

    heard = _while_heard(tell, stop)
    heard(Started(7))
    assert not stop.is_set()
    heard(Started(8))
    assert stop.is_set()
