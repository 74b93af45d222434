"""Runs a peer's server, and ends it when the process that asked for it is gone, even by kill -9.

`python -m weir_lab.bench.sides.peers.guard COMMAND...`: the pipe at stdin closes with the
process that holds its other end. What leaves the session that it was started in is not found here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from weir_lab.bench.harness.machine import family

_KILL_AFTER_SECONDS = 15.0


def main(command: list[str]) -> int:
    """Run a command to its end; return its exit code."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        # It is meant for the server, which gets it as well; the guard ends behind it. Only now,
        # since a server would inherit that a signal is ignored.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watching = threading.Thread(target=_watch, args=(process,), daemon=True)
        watching.start()
        return process.wait()


def _watch(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1 << 10):
        continue
    end(signal.SIGTERM)
    try:
        process.wait(_KILL_AFTER_SECONDS)
    except subprocess.TimeoutExpired:
        end(signal.SIGKILL)


def end(number: signal.Signals) -> None:
    """Send a signal to all that this process has started."""
    for pid in family(os.getpid()):
        if pid != os.getpid():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # The watcher still waits for stdin.
    os._exit(code if code >= 0 else 1)
