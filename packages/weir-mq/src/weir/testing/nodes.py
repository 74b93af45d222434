"""Real nodes on this machine, each a process with a folder of its own: one, or a set of them.

    with running_node() as node:  # `weir serve` on a fresh folder and a free port
        async with weir.connect(node.url) as client: ...

    with running_set(folder, 3) as nodes:
        async with weir.connect(nodes.url) as client: ...

A `RelayProcess` is a relay of either. A node of a set has the settings `SMALL` unless others are
given.
"""

from __future__ import annotations

import http.client
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec

from weir.broker.api.settings import Member
from weir.errors import WeirError
from weir.server.config import Config
from weir.server.disk.node_folder import BadFolder, Founded, NodeFolder, Part, new_system
from weir.server.interpreter import environment, python

START_SECONDS = 60.0
_KILL_AFTER_SECONDS = 5.0
_POLL_SECONDS = 0.01

Setting = str | int | float | bool
HOST = "127.0.0.1"
_LOOK_SECONDS = 0.02
_ANSWER_SECONDS = 1.0
#: Below those that connections are given by themselves, so that they stay free until they are used.
_PORTS_TO = 32_000
#: Processes that begin together have numbers in a row: each looks for ports somewhere else.
_ports_from = [20_000 + os.getpid() * 997 % 10_000]
#: What a throw-away node needs less of than a real one; the environment wins.
SMALL = {
    "WEIR__MEMORY__BUDGET_MIB": "128",
    "WEIR__MEMORY__CACHE_MIB": "64",
    "WEIR__LOG__SEGMENT_MIB": "32",
    "WEIR__LOG__SPARES": "0",
    "WEIR__STATUS__LEVEL": "warning",
}
#: The same with a segment in reserve, as a real node has: else confirms wait while one is made.
READY = {**SMALL, "WEIR__LOG__SPARES": "1"}


class NodeFailed(WeirError):
    """A node did not come up, or did not end by itself; the message holds what it said last."""


class RelayFailed(WeirError):
    """A relay did not start, or has ended by itself; the message says where its log is."""


class Serving(Protocol):
    """One node that runs, or a whole set of them."""

    folder: Path

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""

    @property
    def port(self) -> int:
        """Where devices connect: the port of one node."""

    @property
    def pids(self) -> list[int]:
        """The process ids of all nodes."""

    @property
    def running(self) -> bool:
        """Whether all nodes run."""

    def last_words(self) -> str:
        """Return what was said last, by the node that has ended if one has."""


class Node:
    """A running node process. It ends at `stop`, and with the process that started it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, output: Path) -> None:
        """Take a process that was just started; `wait_until_up` fills host and port."""
        self.folder = folder
        self.host = ""
        self.port = 0
        self._process = process
        self._output = output
        self._told = False

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""
        return f"weir://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The process id, as that of a set of one."""
        return [self.pid]

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def said(self) -> str:
        """Return what the node wrote to stdout and stderr so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def wait_until_up(self, seconds: float = START_SECONDS) -> None:
        """Return once clients may connect. Raises `NodeFailed`."""
        deadline = time.monotonic() + seconds
        while True:
            endpoint = NodeFolder(self.folder).endpoint()
            # The pid, because a node that was killed leaves its announcement behind.
            if endpoint is not None and endpoint.pid == self.pid:
                self.host, self.port = endpoint.host, endpoint.port
                return
            if not self.running:
                raise NodeFailed(f"the node ended before it was up: {self.last_words()}")
            if time.monotonic() > deadline:
                raise NodeFailed(f"the node is not up after {seconds:g} s: {self.last_words()}")
            time.sleep(_POLL_SECONDS)

    def terminate(self) -> None:
        """Tell the node to drain and end; `stop` waits for it."""
        if self.running and not self._told:  # a second signal would not let it drain
            self._process.terminate()
            self._told = True

    def stop(self, seconds: float = 60.0) -> None:
        """Let the node drain and end; kill it and raise `NodeFailed` if that takes too long."""
        self.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise NodeFailed(
                f"the node did not stop within {seconds:g} s and was killed: {self.last_words()}"
            ) from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash would; what was confirmed stays in its folder."""
        if self.running:
            self._process.kill()
            self._process.wait(_KILL_AFTER_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def last_words(self) -> str:
        """Return the last line that the node wrote."""
        lines = self.said().splitlines()
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()


def start_node(folder: Path, scratch: Path, **settings: Setting) -> Node:
    """Start a node on `folder` and return once it is up; its config and output go to `scratch`.

    `settings` are those of the configuration file by their bare names, as in `segment_mib=32`.
    """
    config = scratch / "node.toml"
    output = scratch / "node.log"
    config.write_text(_toml({"host": "127.0.0.1", "port": 0, **settings, "data": str(folder)}))
    with output.open("ab") as log:
        process = subprocess.Popen(
            python("weir.cli", "serve", "--config", str(config), "--until-eof"),
            # The pipe closes when this process ends, however it does, and the node follows.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(),
            # Ctrl-C is for the process that started it, which then stops the node.
            start_new_session=True,
        )
    node = Node(process, folder, output)
    try:
        node.wait_until_up()
    except BaseException:
        node.kill()
        raise
    return node


@contextmanager
def running_node(folder: Path | None = None, **settings: Setting) -> Iterator[Node]:
    """Run a node while the block runs, on `folder` or on a fresh one that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="weir-node-") as name:
        scratch = Path(name)
        with start_node(folder or scratch / "data", scratch, **settings) as node:
            yield node


def _toml(settings: dict[str, Setting]) -> str:
    """Return a configuration file; each setting goes to the section that has one of its name."""
    lines = []
    left = dict(settings)
    for section, value in msgspec.structs.asdict(Config()).items():
        lines.append(f"[{section}]")
        for name in msgspec.structs.asdict(value):
            if name in left:
                # A JSON string or number is a TOML one too.
                lines.append(f"{name} = {msgspec.json.encode(left.pop(name)).decode()}")
    if left:
        raise ValueError(f"no such setting of a node: {', '.join(left)}")
    return "\n".join(lines) + "\n"


class Stopping(Protocol):
    """Says whether to stop waiting."""

    def check(self) -> None:
        """Raise if all is to end."""


class Patient:
    """Never stops waiting."""

    def check(self) -> None:
        """Go on."""


class Berth(msgspec.Struct, frozen=True):
    """Where a node of a set listens, what its command begins with, as for another network, the
    module that is run as `weir`, and the id of its BrokerSet.
    """

    host: str = HOST
    before: tuple[str, ...] = ()
    module: str = "weir.cli"
    brokerset: int = 0


class _Running(msgspec.Struct):
    """A node of the set: where it lies and listens, and its process while there is one."""

    member: Member
    folder: Path
    output: Path
    figures: str
    shards: int
    before: tuple[str, ...] = ()
    module: str = "weir.cli"
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: Where it listens, if others reach it somewhere else.
    listens: int = 0
    node: Node | None = None
    #: When to start it again, if it is to be.
    again_at: float = 0.0

    def start(self) -> None:
        """Start its process."""
        command = python(
            self.module, "serve", "--data", str(self.folder), "--host", self.member.host,
            "--port", str(self.listens or self.member.port), "--shards", str(self.shards),
            "--metrics", self.figures, "--until-eof",
        )  # fmt: skip
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [*self.before, *command],
                # The pipe closes when this process ends, however it does, and the node follows.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.settings, **environment()},
                # Ctrl-C is for the process that started the set, which then stops the nodes in
                # order.
                start_new_session=True,
            )
        self.node = Node(process, self.folder, self.output)

    @property
    def up(self) -> bool:
        """Whether it leads or follows in all it holds. Raises `NodeFailed` if it has ended."""
        assert self.node is not None
        endpoint = NodeFolder(self.folder).endpoint()
        if endpoint is not None and endpoint.pid == self.node.pid and _ready(self.figures):
            return True
        if not self.node.running:
            raise NodeFailed(f"node {self.member.node} ended: {self.node.last_words()}")
        return False

    def row(self) -> dict[str, Any]:
        """Return what a program needs to know of it."""
        assert self.node is not None
        return {
            "node": self.member.node,
            "pid": self.node.pid,
            "host": self.member.host,
            "port": self.member.port,
            "data": str(self.folder),
            "metrics": f"http://{self.figures}/metrics",
            "output": str(self.output),
        }


def wait_until_up(nodes: Sequence[_Running], stopping: Stopping, seconds: float) -> None:
    """Return once all these nodes serve. Raises `NodeFailed`."""
    deadline = time.monotonic() + seconds
    # All are asked: one raises if its process has ended, though another is not up yet.
    while late := [one for one in nodes if not one.up]:
        stopping.check()
        if time.monotonic() > deadline:
            node = late[0].node
            assert node is not None
            raise NodeFailed(
                f"node {late[0].member.node} is not up after {seconds:g} s: {node.last_words()}"
            )
        time.sleep(_LOOK_SECONDS)


class NodeSet:
    """The nodes of a set, from their start to their end."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        shards: int,
        *,
        berths: Sequence[Berth] = (),
        settings: Mapping[str, str] = SMALL,
    ) -> None:
        """Found as many nodes in `folder`, or take those that were founded there.

        `settings` are variables of the nodes' environment, as far as ours does not have them.
        """
        ports = [free_ports(1 + shards) for _ in range(nodes)]
        at = [*berths] or [Berth()] * nodes
        founded = _founded(
            folder, shards, [(one.host, first) for one, (first, *_) in zip(at, ports, strict=True)],
            [one.brokerset for one in at],
        )  # fmt: skip
        self.folder = folder
        self.system = founded[0].system
        self.members = founded[0].members
        self._nodes = [
            _Running(
                member,
                _folder(folder, member.node),
                folder / f"node-{member.node}.log",
                f"{berth.host}:{ports[number][1]}",
                shards,
                berth.before,
                berth.module,
                settings,
            )
            for number, (member, berth) in enumerate(zip(self.members, at, strict=True))
        ]

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""
        return "weir://" + ",".join(f"{member.host}:{member.port}" for member in self.members)

    @property
    def port(self) -> int:
        """The port of the first node."""
        return self.members[0].port

    @property
    def pids(self) -> list[int]:
        """The process ids of the nodes that were started."""
        return [one.node.pid for one in self._nodes if one.node is not None]

    @property
    def running(self) -> bool:
        """Whether all nodes run."""
        return all(one.node is not None and one.node.running for one in self._nodes)

    def last_words(self) -> str:
        """Return what a node that has ended said last."""
        ended = [one.node for one in self._nodes if one.node is not None and not one.node.running]
        return ended[0].last_words() if ended else "all nodes run"

    def rows(self) -> list[dict[str, Any]]:
        """Return what a program needs to know of each node."""
        return [one.row() for one in self._nodes]

    def start(self, stopping: Stopping, seconds: float = START_SECONDS) -> None:
        """Start all nodes and return once clients may connect to each. Raises `NodeFailed`."""
        for one in self._nodes:
            one.start()
        wait_until_up(self._nodes, stopping, seconds)

    def events(self, restart: float | None) -> list[dict[str, Any]]:
        """Return what has happened since the last call; with `restart` a node that ended is started
        again so many seconds later.
        """
        found = []
        now = time.monotonic()
        for one in self._nodes:
            if one.node is None:
                if restart is not None and now >= one.again_at:
                    one.start()
                    found.append({"event": "started", **one.row()})
            elif not one.node.running:
                found.append({"event": "ended", "node": one.member.node, "pid": one.node.pid})
                one.node.kill()
                one.node, one.again_at = None, now + (restart or 0.0)
        return found

    def node(self, number: int) -> Node:
        """Return the process of a node that was started."""
        found = self._nodes[number - 1].node
        assert found is not None
        return found

    def let(self, number: int, settings: Mapping[str, str]) -> None:
        """Let a node have these variables, too, whenever it is started from now on."""
        one = self._nodes[number - 1]
        one.settings = {**one.settings, **settings}

    def begin(self, number: int, before: Sequence[str]) -> None:
        """Let the command of a node begin with these words, as for another release, whenever it is
        started from now on.
        """
        self._nodes[number - 1].before = tuple(before)

    def listen(self, number: int, port: int) -> None:
        """Let a node listen at another port than that at which others reach it, as behind a proxy;
        before it is started.
        """
        self._nodes[number - 1].listens = port

    def restart(
        self, number: int, stopping: Stopping, seconds: float = START_SECONDS
    ) -> None:  # fmt: skip
        """Start a node again that has ended; return once it serves. Raises `NodeFailed`."""
        self.start_again([number])
        self.wait([number], stopping, seconds)

    def start_again(self, numbers: Sequence[int]) -> None:
        """Start nodes again that have ended; `wait` waits until they serve."""
        for number in numbers:
            self._nodes[number - 1].start()

    def wait(
        self, numbers: Sequence[int], stopping: Stopping, seconds: float = START_SECONDS
    ) -> None:  # fmt: skip
        """Return once these nodes serve. Raises `NodeFailed`."""
        wait_until_up([self._nodes[number - 1] for number in numbers], stopping, seconds)

    def kill(self, numbers: Sequence[int]) -> None:
        """End nodes at once, all before the first is waited for."""
        for number in numbers:
            os.kill(self.node(number).pid, signal.SIGKILL)
        for number in numbers:
            self.node(number).kill()

    def stop(self) -> None:
        """Let all nodes drain and end; kill those that do not. Raises `NodeFailed` for them."""
        running = [one.node for one in self._nodes if one.node is not None]
        for node in running:
            node.terminate()
        failed = []
        for node in running:
            try:
                node.stop()
            except NodeFailed as error:
                failed.append(error)
        if failed:
            raise failed[0]


class RelayProcess:
    """A relay that is killed, paused and started again at its port."""

    def __init__(
        self, core: str, folder: Path, port: int, *options: str, number: int = 0,
        at: Berth | None = None, listens: int = 0,
    ) -> None:  # fmt: skip
        """Prepare a relay of the core, with options of `weir relay`. `number` is that of its node,
        if it has one, and that of its set unless `at` says another. It listens at `listens`, if
        that is given, where others reach it at `port`.
        """
        berth = at or Berth()
        words = ["--data", str(folder), "--host", berth.host, "--port", str(listens or port)]
        words.append("--until-eof")
        if number:
            words += ["--set", str(berth.brokerset or number), "--node", str(number)]
        self._command = [*berth.before, *python(berth.module, "relay", core, *words, *options)]
        self._log = folder.with_suffix(".log")
        self.number = number
        self.host = berth.host
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""
        return f"weir://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The number of its process, which runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return once it listens. Raises `RelayFailed`."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment(), start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        if not ready or "weir relays" not in self._process.stdout.readline():
            self.kill()
            raise RelayFailed(f"relay {self.number} did not start: see {self._log}")

    def signal(self, number: int) -> None:
        """Send a signal to a relay that runs."""
        os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether its process is over."""
        return self._process is None or self._process.poll() is not None

    def strike(self) -> None:
        """End it at once. Raises `RelayFailed` if it had ended by itself before."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise RelayFailed(f"relay {self.number} ended by itself, with {code}: see {self._log}")
        self.kill()

    def kill(self) -> None:
        """End it at once; one that is not there is ended."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Let it end; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)  # nothing, if it has ended
        try:
            code = process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return code


@contextmanager
def running_set(
    folder: Path, nodes: int, shards: int = 1, *, settings: Mapping[str, str] = SMALL
) -> Iterator[NodeSet]:
    """Run a set while the block runs, in `folder`. Raises `NodeFailed`."""
    found = NodeSet(folder, nodes, shards, settings=settings)
    try:
        found.start(Patient())
        yield found
    finally:
        found.stop()


def _ready(figures: str) -> bool:
    """Return what a node says of itself at its address for figures."""
    host, _, port = figures.rpartition(":")
    asking = http.client.HTTPConnection(host, int(port), timeout=_ANSWER_SECONDS)
    try:
        asking.request("GET", "/readyz")
        return asking.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        asking.close()


def _founded(
    folder: Path, shards: int, places: Sequence[tuple[str, int]], brokersets: Sequence[int]
) -> list[Founded]:
    if NodeFolder(folder).founded() is not None:
        raise BadFolder(f"{folder} holds a node, and no set of them: give another folder")
    known = NodeFolder(_folder(folder, 1)).founded()
    if known is not None and len(known.members) != len(places):
        raise BadFolder(
            f"{folder} holds a set of {len(known.members)} nodes, not {len(places)}: "
            "give another folder"
        )
    members = known.members if known else tuple(
        Member(node, host, port) for node, (host, port) in enumerate(places, 1)
    )  # fmt: skip
    system = known.system if known else new_system()
    logs = known.logs if known else shards
    return [
        NodeFolder(_folder(folder, member.node)).found(
            logs, None, Part(member.node, members, system, brokerset)
        )
        for member, brokerset in zip(members, brokersets, strict=True)
    ]


def _folder(folder: Path, node: int) -> Path:
    return folder / f"node-{node}"


def free_ports(count: int) -> range:
    """Return so many ports in a row that nobody listens on, and that no call returned before."""
    for first in range(_ports_from[0], _PORTS_TO - count, count):
        found = range(first, first + count)
        try:
            for port in found:
                socket.create_server((HOST, port)).close()
        except OSError:
            continue
        _ports_from[0] = found.stop
        return found
    raise NodeFailed("no ports are free: see what listens on this machine")
