"""Examples of the documentation as modules, and their processes as threads of a test."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import weir_toc
from rigs.programs import PATIENCE_SECONDS, Programs

FOLDER = Path(__file__).parents[2] / "examples"
Rows = list[list[str]]
Say = Callable[..., None]


def example(name: str) -> ModuleType:
    """Return the example of a file."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(crew: Programs, name: str) -> Rows:
    """What a program has printed by now: whole lines, as words."""
    text = (crew.folder / f"{name}.out").read_text()
    return [one.split() for one in text.splitlines(keepends=True) if one.endswith("\n")]


def wait_for_all(crew: Programs, names: list[str]) -> None:
    """Wait until these programs have ended well."""
    until = time.monotonic() + 3 * PATIENCE_SECONDS
    for name in names:
        assert crew.running[name].wait(until - time.monotonic()) == 0, crew.errors(name)
        crew.running.pop(name).stdin.close()  # type: ignore[union-attr]


def wait_until(holds: Callable[[], bool], told: Callable[[], object]) -> None:
    """Wait for a state."""
    until = time.monotonic() + 2 * PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < until, told()
        time.sleep(0.02)


class Threads:
    """Processes of a network, each in a thread, and what they say."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.said: dict[str, Rows] = {}
        self.errors: list[BaseException] = []
        self._members: dict[str, weir_toc.sync.Member] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, run: Callable[[weir_toc.sync.Member, Say], None]) -> None:
        """Join under a name, and run."""
        rows = self.said[name] = []

        def body() -> None:
            try:
                with weir_toc.sync.join(self.url, name=name) as me:
                    self._members[name] = me
                    run(me, lambda *words: rows.append(" ".join(map(str, words)).split()))
            except BaseException as error:
                self.errors.append(error)

        self._threads[name] = threading.Thread(target=body, daemon=True)
        self._threads[name].start()

    def kill(self, name: str) -> Rows:
        """Let a process go without a word, so that others miss its beacons; return what it said."""
        self._members[name]._running.stop()
        self._threads[name].join(PATIENCE_SECONDS)
        (error,) = self.errors
        assert isinstance(error, weir_toc.TocError)
        self.errors.clear()
        return self.said.pop(name)

    def wait(self) -> None:
        """Wait until all have ended well."""
        for name in self.said:
            self._threads[name].join(2 * PATIENCE_SECONDS)
            assert not self._threads[name].is_alive(), self.said[name][-3:]
        assert not self.errors
