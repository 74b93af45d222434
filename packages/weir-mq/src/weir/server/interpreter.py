"""Python processes that run this very weir: how they are started, the loop they run on, and the
signals that end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import sysconfig
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

log = logging.getLogger(__name__)

R = TypeVar("R")

#: Thresholds of the garbage collector's three generations. What passes through a broker is freed by
#: counting; looking for cycles after every 700 objects, as is the default, goes through all
#: sessions again and again while thousands of peers connect.
_COLLECT_AFTER = (50_000, 20, 10)
#: Where the packages that run now lie: children import these, installed or not.
_IMPORT_ROOTS = [
    str(Path(spec.origin).parents[1])
    for name in ("weir", "weir_raft")
    if (spec := find_spec(name)) and spec.origin
]


def run_loop(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, on uvloop if that is installed. The process is for it alone."""
    gc.set_threshold(*_COLLECT_AFTER)
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def stop_by_signal(stopping: asyncio.Event) -> None:
    """Set `stopping` at SIGTERM or SIGINT; a second one ends the process at once.

    Its exit code is 128 plus the signal's number. What was confirmed is durable in any case.
    """
    loop = asyncio.get_running_loop()

    def received(number: int) -> None:
        if stopping.is_set():
            _end(number)
        log.info("draining; a second signal ends the node at once")
        stopping.set()

    with contextlib.suppress(ValueError, RuntimeError):  # signals only reach the main thread
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, received, number)


def _end(number: int) -> NoReturn:
    log.warning("ended by a second signal before everything was drained")
    logging.shutdown()
    os._exit(128 + number)


def python(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of weir with this interpreter."""
    # -P: what lies in the folder that we happen to be in is not imported.
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, in which the weir that runs now can be imported."""
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if installed.issuperset(_IMPORT_ROOTS):
        return dict(os.environ)
    path = os.environ.get("PYTHONPATH")
    roots = [*dict.fromkeys(_IMPORT_ROOTS), *([path] if path else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
