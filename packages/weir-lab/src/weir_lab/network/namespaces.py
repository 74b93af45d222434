"""Network namespaces of one process, which end with it.

A process that has entered a namespace of its own may make others in it. Each is kept by a process
that ends with this one, however this one ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from weir.errors import WeirError
from weir.server.interpreter import environment, python

_MARK = "WEIR_NETWORK"
_WAIT_S = 5.0
_LOOK_S = 0.005


class NoNetwork(WeirError):
    """Networks cannot be made here; the message says what is needed."""


def enter(arguments: Sequence[str]) -> None:
    """Become `weir` with these arguments, in a network namespace of its own; once is enough.

    Without root that needs user namespaces for everybody. Raises `NoNetwork` without either.
    """
    if os.environ.get(_MARK) == str(os.getpid()):
        return
    how = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    try:
        able = subprocess.run(["unshare", *how, "ip", "link"], capture_output=True, check=False)
    except FileNotFoundError:
        raise NoNetwork(
            "networks of our own need `unshare` (util-linux) and `ip` (iproute2): install them"
        ) from None
    if able.returncode:
        raise NoNetwork(
            "networks of our own need network namespaces: run this as root, or let users make "
            f"namespaces (sysctl kernel.unprivileged_userns_clone=1): {able.stderr.decode()}"
        )
    sys.stdout.flush()
    # The mark names the process, which stays the same: a child of it would have to enter again.
    env = {**environment(), _MARK: str(os.getpid())}
    os.execvpe("unshare", ["unshare", *how, *python("weir.cli", *arguments)], env)


class Namespace:
    """A network namespace. What runs in it keeps it, too."""

    def __init__(self) -> None:
        """Make it; `enter` comes first. Raises `NoNetwork`."""
        # It keeps the namespace while others come and go, and ends with this process.
        self._keeper = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        own, until = os.readlink("/proc/self/ns/net"), time.monotonic() + _WAIT_S
        while os.readlink(Path("/proc", str(self._keeper.pid), "ns/net")) == own:
            if self._keeper.poll() is not None or time.monotonic() > until:
                self.close()
                raise NoNetwork("no network namespace came up: see what `unshare --net true` says")
            time.sleep(_LOOK_S)

    @property
    def pid(self) -> int:
        """A process in it, as `ip` takes it."""
        return self._keeper.pid

    @property
    def before(self) -> tuple[str, ...]:
        """What a command begins with that runs in it."""
        return ("nsenter", "--target", str(self._keeper.pid), "--net")

    def close(self) -> None:
        """Give it up."""
        self._keeper.kill()
        self._keeper.wait()
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()


def ip(*words: str, before: Sequence[str] = ()) -> None:
    """Run one command of `ip`. Raises `NoNetwork`."""
    _run((*before, "ip", *words), "")


def ip_batch(lines: Iterable[str], before: Sequence[str] = ()) -> None:
    """Run several commands of `ip` in one process. Raises `NoNetwork`."""
    _run((*before, "ip", "-batch", "-"), "\n".join(lines) + "\n")


def _run(words: Sequence[str], text: str) -> None:
    done = subprocess.run(words, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise NoNetwork(f"`{' '.join(words)}` failed: {done.stderr.strip()} {text.strip()}")
