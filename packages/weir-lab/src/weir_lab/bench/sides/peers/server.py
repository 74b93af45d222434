"""A peer's server: its processes, its folder, its port, and how it is made to forget nothing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir_lab.bench.harness.machine import family
from weir_lab.bench.sides.peers.dialect import (
    Client,
    Consuming,
    PeerRefused,
    Publishing,
    Sharing,
    refused,
)

START_SECONDS = 90.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.02
_ASK_SECONDS = 30.0
#: Where scripts/install-peers puts what no Debian package holds.
PEERS_FOLDER = Path(os.environ.get("WEIR_PEERS", Path.home() / ".cache" / "weir-peers"))


class NotInstalled(WeirError):
    """A peer is not on this machine; the message names the script that installs it."""


class PeerFailed(WeirError):
    """A peer did not come up, or did not take a topic; the message holds what it said last."""


class Peer(ABC):
    """One broker in one setting. `start` it, `prepare` a topic, drive it, `stop` it."""

    name: str
    variants: tuple[str, ...]
    #: Whether what is confirmed survives the loss of power.
    synced: bool
    #: A thread of it that does nearly all the work, so that one full core is its limit.
    one_thread = False
    #: Why workers cannot share what it holds; nothing if they can.
    no_workers = ""
    #: A client that is shipped for it, with which lone producers and workers drive it then.
    client: type[Client] | None = None

    def __init__(self, variant: str) -> None:
        """Choose a setting. Raises `ValueError` for one that there is not."""
        if variant not in self.variants:
            raise ValueError(f"{self.name} has the variants {', '.join(self.variants)}")
        self.variant = variant
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._output = Path()

    # What each peer fills in.

    @property
    @abstractmethod
    def settings(self) -> str:
        """Tell how it is set: what is durable, and when it is synced."""

    @abstractmethod
    def version(self) -> str:
        """Return its version."""

    @abstractmethod
    def command(self, folder: Path) -> list[str]:
        """Write its configuration below `folder`; return how to start it. Raises `NotInstalled`."""

    @abstractmethod
    def prepare(self, topic: str) -> None:
        """Make a durable, empty topic."""

    @abstractmethod
    def publishing(self, topic: str, size: int) -> Publishing:
        """Return a producer's side of its protocol."""

    @abstractmethod
    def consuming(self, topic: str, size: int) -> Consuming:
        """Return the consumer's side."""

    def working(self, topic: str, size: int, number: int, grant: int) -> Sharing:
        """Return the side of worker `number`, of those that share a topic; at most `grant` messages
        are given to it that it has not acked. Raises `PeerRefused` if workers cannot share one.
        """
        raise PeerRefused(f"{self.label}: {self.no_workers}")

    def share(self, topic: str) -> None:
        """Make a durable, empty topic that workers are to share."""
        self.prepare(topic)

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Return what its process finds in the environment besides what is there."""
        return {}

    # What all peers share.

    @property
    def label(self) -> str:
        """The peer with its setting, as in redis:always."""
        return f"{self.name}:{self.variant}"

    def start(self, folder: Path) -> None:
        """Start it with all its state below `folder`; return once it takes connections."""
        self.port = free_port()
        command = self.command(folder)
        self._output = folder / "output"
        with self._output.open("ab") as log:
            self._process = subprocess.Popen(
                python("weir_lab.bench.sides.peers.guard", *command),
                # It closes when this process ends, however it does, and the guard ends the peer.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**environment(), **self.environment(folder)},
                # A session of its own: all it starts can be found, measured and ended.
                start_new_session=True,
            )
        self._wait_until_up()

    def stop(self) -> None:
        """End it with everything that it started."""
        if self._process is None:
            return
        _signal(family(self._process.pid), signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _signal(family(self._process.pid), signal.SIGKILL)
            self._process.wait(_STOP_SECONDS)
            if self._process.stdin is not None:
                self._process.stdin.close()

    @property
    def pid(self) -> int:
        """The process id of its first process, which is its session's too."""
        return self._process.pid if self._process is not None else 0

    def _wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process.poll() is not None:
                raise PeerFailed(f"{self.label} ended before it was up: {self.last_words()}")
            if time.monotonic() > deadline:
                raise PeerFailed(
                    f"{self.label} is not up after {START_SECONDS:g} s: {self.last_words()}"
                )
            time.sleep(_POLL_SECONDS)

    def answers(self) -> bool:
        """Tell whether its port takes connections."""
        return answers(self.port)

    def last_words(self) -> str:
        """Return the end of what it wrote."""
        lines = self._output.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-3:]) or "it said nothing"


@contextmanager
def running_peer(peer: Peer, folder: str | None = None) -> Iterator[Path]:
    """Run a peer on a fresh folder, which it yields; both are gone after the block, always."""
    with tempfile.TemporaryDirectory(prefix=f"weir-peer-{peer.name}-", dir=folder) as place:
        try:
            peer.start(Path(place))
            yield Path(place)
        finally:
            peer.stop()


def free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Tell whether a port of this machine takes connections."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def program(name: str, *places: Path) -> str:
    """Return the path of a program. Raises `NotInstalled`, which says what to do."""
    for place in places:
        if place.exists():
            return str(place)
    found = shutil.which(name)
    if found is None:
        raise NotInstalled(f"{name} is not installed here: run scripts/install-peers, then again")
    return found


def package_version(name: str) -> str:
    """Return the version of a Debian package. Raises `NotInstalled`."""
    try:
        return subprocess.check_output(
            ["dpkg-query", "-W", "-f", "${Version}", name], text=True, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        raise NotInstalled(
            f"{name} is not installed here: run scripts/install-peers, then again"
        ) from None


def library_version(name: str) -> str:
    """Return the version of a peer's Python client. Raises `NotInstalled`."""
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        raise NotInstalled(f"{name} is not installed here: pip install weir-lab[peers]") from None


def ask(port: int, request: bytes, whole: bytes, error: bytes, peer: str) -> bytes:
    """Send a request and return the answer, once it holds `whole`.

    Raises `PeerRefused` if it holds `error`, and `PeerFailed` if it does not come.
    """
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), _ASK_SECONDS) as connection:
            connection.sendall(request)
            while whole not in answer:
                data = connection.recv(1 << 16)
                if not data:
                    break
                answer += data
                if error in answer:
                    raise refused(peer, answer)
    except OSError as failed:
        raise PeerFailed(f"{peer} does not answer: {failed}") from failed
    if whole not in answer:
        raise PeerFailed(f"{peer} closed the connection: {answer[:200]!r}")
    return answer


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes that we started, as far as they are still there."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
