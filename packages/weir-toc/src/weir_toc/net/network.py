"""The processes of a network in a tree of namespaces: started, watched, and ended.

`run` gives the tree a namespace of processes. Its first process builds the tree and watches; the
other one passes on signals. Whichever of the two ends, by any signal, the kernel ends all others
and takes the tree apart.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from weir_toc.errors import TocError
from weir_toc.hosts.announcer import Announcer
from weir_toc.hosts.frames import Frame
from weir_toc.net import linux, namespaces
from weir_toc.net.tree import (
    CONTROLLER,
    CONTROLLER_PORT,
    HOSTS_NETWORK,
    SWITCH_PORT,
    Node,
    Tree,
    announced,
    controller_url,
    described,
)
from weir_toc.places import Place
from weir_toc.topology import RACK_VARIABLE

#: How long controller and switches may take to start.
START_SECONDS = 60.0
_LOOK_SECONDS, _END_SECONDS = 0.1, 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class NetConfig:
    """What runs in the tree."""

    place: Place = Place.HOST
    members: int = 3
    interval_ms: float = 5.0
    #: The share of packets that each device loses as it sends.
    loss: float = 0.0
    #: Where logs are kept; None for a file system in memory that ends with the tree.
    folder: Path | None = None
    #: Whether what is told of the tree is for programs.
    as_json: bool = False
    #: When outputs of switches mark packets, as for `weir-toc controller`.
    drain_mbit: float = 0.0
    mark_bytes: int | None = None


class _Told(Exception):
    """A signal says that it is enough."""


def run(tree: Tree, config: NetConfig, announcer: Callable[[], Announcer]) -> None:
    """Build the tree and serve until SIGTERM, SIGINT, or the end of the parent process.

    Raises TocError with what is missing, or if a process of the network has ended.
    """
    namespaces.check_needs()
    linux.end_with_parent(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        folder = config.folder
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="weir-toc-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        # An empty folder to mount over. It stays: other trees may have mounts over it, which the
        # kernel would take away with it.
        namespaces.NAMESPACES.mkdir(parents=True, exist_ok=True)
        _watch(lambda own: _first(tree, config, folder, announcer, own))


def _watch(body: Callable[[int], None]) -> None:
    """Run `body`, which is given its id outside, in the first process of a new namespace.

    Raises TocError if that does, or ends otherwise. `body` sets its own signals, and unblocks them.
    """
    id_read, id_write = os.pipe()
    why_read, why_write = os.pipe()
    try:
        linux.unshare(linux.CLONE_NEWPID)
    except OSError as error:
        raise TocError(f"net up: the kernel refuses private namespaces: {error}") from error
    # Until the first process has its handlers a signal would do nothing to it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if not child:
        os.close(id_write)
        _be_first(body, id_read, why_write)
    os.close(id_read)
    os.close(why_write)

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    former = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.write(id_write, b"%d" % child)
    try:
        with open(why_read, encoding="utf-8", errors="replace") as pipe:
            why = pipe.read()
        os.waitpid(child, 0)
        if why:
            raise TocError(why)
    finally:
        os.close(id_write)
        for number, handler in former.items():
            signal.signal(number, handler)


def _be_first(body: Callable[[int], None], id_read: int, why_write: int) -> NoReturn:
    """Run `body` with the id that is read, write why it failed, and end this process."""
    why = ""
    try:
        linux.end_with_parent(signal.SIGKILL)
        own = os.read(id_read, 20)
        if own:  # else the other one has ended before the kernel knew what to do then
            body(int(own))
    except (TocError, OSError, subprocess.SubprocessError) as error:
        why = str(error)
    except BaseException as error:
        why = f"the network ended: {error!r}"
    finally:
        os.write(why_write, why.encode()[:60_000])
        os._exit(0)


def _first(
    tree: Tree, config: NetConfig, folder: Path, announcer: Callable[[], Announcer], own: int
) -> None:
    """Do all of it in the first process of the namespace, whose id outside is `own`."""

    def stop(_: int, __: FrameType | None) -> None:
        raise _Told

    for number in _SIGNALS:
        signal.signal(number, stop)
    network = Network(tree, config, folder)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        with announcer() as told:
            begun = time.monotonic()
            namespaces.enter()
            if config.folder is None:  # in memory: they end with the tree, whatever ends that
                linux.mount("logs", folder, "tmpfs")
            namespaces.build(tree, config.loss)
            told.say("namespaces", {"nodes": len(tree.nodes), "links": len(tree.cables),
                                    "seconds": _since(begun)})  # fmt: skip
            for done, total in network.start():
                told.say("started", {"processes": done, "of": total, "seconds": _since(begun)})
            for event, facts in announced(network.describe(own), config.as_json):
                told.say(event, facts)
            told.flush()
            network.watch()
    except _Told:
        return
    finally:
        for number in _SIGNALS:  # a second one must not stop the end
            signal.signal(number, signal.SIG_IGN)
        network.end()


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 1)


class Network:
    """Members of the controller and the process of each switch."""

    def __init__(self, tree: Tree, config: NetConfig, folder: Path) -> None:
        self.tree = tree
        self.config = config
        self.folder = folder
        self.url = controller_url(config.members)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> Iterator[tuple[int, int]]:
        """Start all processes; yield how many of how many run, each time that it is more.

        Raises TocError if one ends, or does not start in time.
        """
        config = self.config
        for id in range(1, config.members + 1):
            self._start(f"controller-{id}", self._member(id))
        for node in self.tree.nodes.values():
            words = switch_words(self.tree, node, config.place, self.url)
            if config.place is Place.XDP and not node.tier:
                self._run_once(node, words)
            elif words:
                self._start(node.name, [*in_node(node), *words])
        total, done = len(self._running), -1
        until = time.monotonic() + START_SECONDS
        while done < total:
            self.check()
            now = sum(self._is_up(name) for name in self._running)
            if now > done:
                done = now
                yield done, total
            elif time.monotonic() > until:
                late = [name for name in self._running if not self._is_up(name)]
                raise TocError(f"{', '.join(late)}: not started in {START_SECONDS:g} s")
            else:
                time.sleep(_LOOK_SECONDS)

    def describe(self, own: int) -> Frame:
        """Return the tree; `own` is the id of this process for the rest of the machine."""
        enter = ["nsenter", f"--target={own}", "--mount", "--pid"]
        commands = {name: [*enter, *in_node(node)] for name, node in self.tree.nodes.items()}
        for host in self.tree.hosts:  # what joins there is linked to the switch of this rack
            commands[host.name] += ["env", f"{RACK_VARIABLE}={host.rack}"]
        return {
            "url": self.url, "place": self.config.place.value,
            "interval_ms": self.config.interval_ms, "loss": self.config.loss,
            **described(self.tree, commands),
        }  # fmt: skip

    def watch(self) -> None:
        """Wait until a process ends. Raises TocError with its last words then."""
        while True:
            select.select((), (), (), _LOOK_SECONDS)
            self.check()
            self._reap()

    def check(self) -> None:
        """Raise TocError if a process has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise TocError(f"{name} ended: {self._last_words(name)}")

    def end(self) -> None:
        """End all processes: politely, then by force."""
        for process in self._running.values():
            process.terminate()
        until = time.monotonic() + _END_SECONDS
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        for process in self._running.values():
            process.kill()

    def _member(self, id: int) -> list[str]:
        config, shape = self.config, self.tree.topology
        tiers = [sum(one.tier == tier for one in self.tree.switches.values()) for tier in (1, 2, 3)]
        assert sum(tiers) == len(shape.switches)
        return [
            *_weir_toc("controller"), "--id", str(id), "--members", self.url,
            "--listen", f"{CONTROLLER}:{CONTROLLER_PORT + id - 1}",
            "--folder", str(self.folder / f"controller-{id}"), "--racks", str(tiers[0]),
            "--spines", str(tiers[1]), "--cores", str(tiers[2]),
            "--interval-ms", str(config.interval_ms), "--place", config.place.value, "--json",
            "--drain-mbit", str(config.drain_mbit),
            *(["--mark-bytes", str(config.mark_bytes)] if config.mark_bytes is not None else []),
        ]  # fmt: skip

    def _start(self, name: str, words: Sequence[str]) -> None:
        with (
            (self.folder / f"{name}.out").open("wb") as output,
            (self.folder / f"{name}.err").open("wb") as errors,
        ):
            self._running[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
            )

    def _run_once(self, node: Node, words: Sequence[str]) -> None:
        done = subprocess.run([*in_node(node), *words], capture_output=True, text=True, check=False,
                              timeout=START_SECONDS)  # fmt: skip
        if done.returncode:
            raise TocError(f"{node.name}: {' '.join(done.stderr.split())[-500:]}")

    def _is_up(self, name: str) -> bool:
        """Whether a process has said what it is: a switch does so once it is admitted."""
        return b"\n" in (self.folder / f"{name}.out").read_bytes()

    def _last_words(self, name: str) -> str:
        text = (self.folder / f"{name}.err").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it wrote no error"

    def _reap(self) -> None:
        """Take leave of processes that commands in the tree have left behind: nobody else does."""
        own = {process.pid for process in self._running.values()}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in own:
                return  # `check` takes it
            os.waitpid(found.si_pid, 0)


def in_node(node: Node) -> list[str]:
    """The words before a command that runs in a node, said inside the tree."""
    return ["ip", "netns", "exec", node.name]


def switch_words(tree: Tree, node: Node, place: Place, url: str) -> list[str]:
    """Return the command that runs in a node; none in a host, but for a programmable switch."""
    ports = [port.device for port in tree.ports[node.name]]
    if not node.tier:
        return [sys.executable, "-m", "weir_toc.xdp", "pass", *ports] if place is Place.XDP else []
    more = {
        Place.HOST: [],
        Place.SWITCH: ["--forward", HOSTS_NETWORK],
        Place.XDP: ["--xdp", ",".join(ports)],
    }[place]
    return [
        *_weir_toc("aggregator"), url, "--switch", node.name,
        "--listen", f"{node.address}:{SWITCH_PORT}", "--place", place.value, "--json", *more,
    ]  # fmt: skip


def _weir_toc(verb: str) -> list[str]:
    return [sys.executable, "-m", "weir_toc", verb]
