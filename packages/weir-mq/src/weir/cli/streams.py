"""The standard streams of the process `weir`: those that are closed, and readers that go."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

from weir.cli.reasons import in_words

#: The exit code of a verb whose reader went before it was done: as if SIGPIPE had ended it.
EXIT_UNREAD = 128 + signal.SIGPIPE

CLOSED = "stdout is closed: give it a place, as in `> FILE`, or `> /dev/null` to see nothing"

#: Services, which tell what happens on stderr.
_SERVICES = ("serve", "work")


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
