"""A process of `weir work`: runs an application, and ends when the one that started it does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence

from weir.app.app import App, run_in_new_loop
from weir.app.signals import stopped_by_signals
from weir.app.supervision.loader import load
from weir.errors import WeirError


def main(words: Sequence[str]) -> None:
    """Run MODULE:APP of a cluster, at a URL, with a grace in s, until SIGTERM or stdin ends.

    What ends it says so in a line: it is started again, and would fill the screen otherwise.
    """
    name, cluster, url, grace = words
    app = load(name)
    threading.Thread(target=_end_with_stdin, name="weir-until-eof", daemon=True).start()
    try:
        run_in_new_loop(_run(app, url, cluster, float(grace)))
    except WeirError as error:
        sys.exit(str(error))


async def _run(app: App, url: str, cluster: str, grace: float) -> None:
    """Run until SIGTERM, and leave it to `weir work` to tell of that: it has sent it."""
    stop = asyncio.Event()
    with stopped_by_signals(stop, tells=False):
        await app.run(url, cluster=cluster, stop=stop, grace=grace)


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
