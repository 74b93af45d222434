"""A process of `weir work`: runs an application, and ends when the one that started it does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

from weir.app.loading import load
from weir.errors import WeirError


def main(words: Sequence[str]) -> None:
    """Run MODULE:APP of a cluster, at a URL, with a grace in s, until SIGTERM or stdin ends.

    What ends it says so in a line: it is started again, and would fill the screen otherwise.
    """
    name, cluster, url, grace = words
    app = load(name)
    threading.Thread(target=_end_with_stdin, name="weir-until-eof", daemon=True).start()
    try:
        app.run_sync(url, cluster=cluster, grace=float(grace))
    except WeirError as error:
        sys.exit(str(error))


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
