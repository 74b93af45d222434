"""Every program of examples/handlers runs, and does what docs/how-to/handlers.md says."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weir
from weir.server.interpreter import environment

ROOT = Path(__file__).parents[5]
URL = "weir://localhost:6800"


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The programs by their names; databases of theirs go to a folder of this test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "example", None)  # so that it is put back afterwards
    folder = ROOT / "examples" / "handlers"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}


def run(code: str, url: str) -> dict[str, Any]:
    """Run an example as a module, and return what it defines."""
    module = sys.modules["example"] = ModuleType("example")  # SQLAlchemy looks for it there
    exec(compile(code.replace(URL, url), "example", "exec"), module.__dict__)
    return module.__dict__


def test_there_are_so_many(examples: dict[str, str]) -> None:
    assert [*examples] == [
        "ledger.py",
        "options.py",
        "sessions.py",
        "test_ledger.py",
        "topics.py",
    ]


def test_the_quick_start_records_each_unlock(
    node: Any, examples: dict[str, str], all_done: Any
) -> None:
    async def test() -> None:
        app = run(examples["ledger.py"], node.url)["app"]
        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks", partitions=2)
            await w.publish("unlocks", {"door": "A17"})
            await w.publish("unlocks", {"window": "B2"})
            async with app.running():
                await all_done(w, "unlocks", "ledger")
            with sqlite3.connect("ledger.db") as ledger:
                assert ledger.execute("select door from unlocks").fetchall() == [("A17",)]
            (letter,) = [m async for m in w.reader("unlocks.dead", follow=False)]
            assert letter.headers["weir-reason"] == b"no door is named"

    asyncio.run(test())


def test_options_and_hooks(
    node: Any, examples: dict[str, str], capsys: pytest.CaptureFixture[str], all_done: Any
) -> None:
    async def test() -> None:
        app = run(examples["options.py"], node.url)["app"]
        async with weir.connect(node.url) as w:
            await w.create_topic("payments")
            await w.create_topic("bills")
            await w.publish("payments", b"1", key="anna")
            async with app.running():
                await all_done(w, "payments", "billing")
            assert [m.key async for m in w.reader("bills", follow=False)] == [b"anna"]

    asyncio.run(test())
    assert capsys.readouterr().out == "begins 1\nover 1 None\n"


def test_a_handler_of_several_topics(
    node: Any, examples: dict[str, str], capsys: pytest.CaptureFixture[str], all_done: Any
) -> None:
    async def test() -> None:
        app = run(examples["topics.py"], node.url)["app"]
        async with weir.connect(node.url) as w:
            for topic in ("payments", "shop.orders", "till"):
                await w.create_topic(topic)
                await w.publish(topic, b"1")
            async with app.running():
                for topic in ("payments", "shop.orders"):
                    await all_done(w, topic, "audit")

    asyncio.run(test())
    said = sorted(capsys.readouterr().out.splitlines())
    assert said == ["payments 1", "shop.orders 1"]


def test_effects_with_async_sessions(node: Any, examples: dict[str, str], all_done: Any) -> None:
    async def test() -> None:
        names = run(examples["sessions.py"], node.url)
        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            for door in "AB":
                await w.publish("unlocks", {"door": door})
            for _ in range(2):
                async with names["app"].running():
                    await all_done(w, "unlocks", "doors")
                await w.seek_cluster("unlocks", "doors", "earliest")
        await names["engine"].dispose()
        with sqlite3.connect("doors.db") as doors:
            assert sorted(doors.execute("select door from unlocks")) == [("A",), ("B",)]

    asyncio.run(test())


def test_the_tests_on_the_page_pass(tmp_path: Path, examples: dict[str, str]) -> None:
    for name in ("ledger.py", "test_ledger.py"):
        (tmp_path / name).write_text(examples[name], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_ledger.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
