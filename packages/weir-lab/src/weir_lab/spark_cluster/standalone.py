"""Spark's standalone mode: a master and workers, each a process, and what their pages say."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir.testing.nodes import HOST, free_ports
from weir_lab.bench.harness.machine import family
from weir_lab.spark_cluster.environments import SparkHome

#: What a JVM that lives for minutes never earns back is left out: a second compiler, threads that
#: collect garbage, a file of counters in /tmp.
LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
#: Words in the command lines of an executor, and of what it starts to run Python.
_EXECUTOR = "CoarseGrainedExecutorBackend"
_PYTHON = "pyspark.daemon"
_DAEMON_MEMORY = "256m"
_UP_SECONDS = 60.0
_END_SECONDS = 20.0
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_PAGE_BYTES_MAX = 8 << 20


class SparkFailed(WeirError):
    """A part of the Spark cluster did not come up, or a job failed; the message says what."""


@dataclass(frozen=True, slots=True)
class Application:
    """An application as the master lists it, and on which workers executors of it ran."""

    id: str
    name: str
    state: str
    cores: int
    workers: tuple[str, ...] = ()


class Daemon:
    """One process of Spark, of a class that `spark-class` starts, and its page.

    It ends with this process, however that ends, and so does all that it has started.
    """

    def __init__(self, name: str, home: SparkHome, java: Path, folder: Path) -> None:
        """Take whose Spark it is, and a folder for its files; `start` starts it."""
        self.name = name
        self.folder = folder
        self._home = home
        self._java = java
        self._output = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._page = 0

    def start(self, kind: str, words: Sequence[str], port: int) -> None:
        """Start `kind` with its arguments; its page is at `port`."""
        self._page = port
        (self.folder / "scratch").mkdir(parents=True, exist_ok=True)
        variables = [f"{key}={value}" for key, value in self._variables().items()]
        command = [str(self._home.folder / "bin" / "spark-class"), kind, *words]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                # Nothing of this process's environment gets there: executors would inherit it, and
                # import this very weir.
                python("weir_lab.bench.sides.peers.guard", "env", "-i", *variables, *command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=environment(),
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it and all that it has started; after 20 s by force."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        started = family(process.pid)
        process.stdin.close()  # and so the guard ends them
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            kill(family(process.pid))
            process.wait(_END_SECONDS)
        # An executor whose worker ended before it could be told is nobody's child any more.
        kill(pid for pid in started if _session(pid) == process.pid)

    def page(self) -> dict[str, Any]:
        """Return its page as JSON. Raises `SparkFailed` if it has ended, `OSError` if it does not
        answer, or not with JSON: Spark adds its pages one by one to a web server that runs already.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            raise SparkFailed(f"{self.name} has ended: {last_words(self._output)}")
        asking = http.client.HTTPConnection(HOST, self._page, timeout=_ANSWER_SECONDS)
        try:
            asking.request("GET", "/json/")
            answer = asking.getresponse()
            text = answer.read(_PAGE_BYTES_MAX)
            if answer.status != http.client.OK:
                raise OSError(f"{self.name} answered {answer.status}")
            found: dict[str, Any] = json.loads(text)
            return found
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"{self.name} answered with no page: {error}") from error
        finally:
            asking.close()

    def executors(self) -> list[int]:
        """Return the process ids of its executors that run Python, which reads topics."""
        if self._process is None:
            return []
        found = {pid: _command(pid) for pid in family(self._process.pid)}
        python = [pid for pid, words in found.items() if _PYTHON in words]
        parents = {pid for one in python for pid in _parents(one)}
        return [pid for pid, words in found.items() if _EXECUTOR in words and pid in parents]

    def last_words(self) -> str:
        """Return the last line that it wrote."""
        return last_words(self._output)

    def _variables(self) -> Mapping[str, str]:
        scratch = self.folder / "scratch"
        return {
            "PATH": f"{self._home.environment / 'bin'}:{os.defpath}",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "JAVA_HOME": str(self._java),
            "SPARK_HOME": str(self._home.folder),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_PUBLIC_DNS": HOST,
            "SPARK_LOCAL_DIRS": str(scratch),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": f"{LEAN} -Djava.io.tmpdir={scratch}",
            "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
            # A port of its own, which is the same for every master.
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }


class Standalone:
    """A master and workers while the block runs, each with an environment of its own."""

    def __init__(
        self,
        folder: Path,
        java: Path,
        master: SparkHome,
        workers: Sequence[SparkHome],
        memory: str = "1g",
    ) -> None:
        """Take where files go, a JAVA_HOME, and whose Spark each process is; a worker offers one
        core and so much `memory`.
        """
        ports = free_ports(2)
        self.url = f"spark://{HOST}:{ports[0]}"
        self._ports = ports
        self._memory = memory
        self._master = Daemon("master", master, java, folder / "master")
        self.workers = [
            Daemon(f"worker-{number}", home, java, folder / f"worker-{number}")
            for number, home in enumerate(workers, 1)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Standalone:
        with ExitStack() as stack:
            stack.callback(self._master.stop)
            words = ["--host", HOST, "--port", str(self._ports[0])]
            page = self._ports[1]
            self._master.start(_MASTER, [*words, "--webui-port", str(page)], page)
            self._wait(lambda: bool(self._master.page()["status"] == "ALIVE"), self._master)
            for worker in self.workers:
                stack.callback(worker.stop)
                (page,) = free_ports(1)
                words = ["--host", HOST, "--cores", "1", "--memory", self._memory]
                words += ["--webui-port", str(page), "--work-dir", str(worker.folder / "work")]
                worker.start(_WORKER, [*words, self.url], page)
            for worker in self.workers:
                self._wait(partial(_answers, worker), worker)
            count = len(self.workers)
            self._wait(lambda: bool(self._master.page()["aliveworkers"] == count), self._master)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stack.close()

    def applications(self) -> list[Application]:
        """Return the applications that the master lists, in the order in which they came.

        Raises `SparkFailed` and `OSError`.
        """
        ran: dict[str, list[str]] = {}
        for worker in self.workers:
            page = worker.page()
            for executor in [*page["executors"], *page["finishedexecutors"]]:
                ran.setdefault(executor["appid"], []).append(worker.name)
        page = self._master.page()
        listed = [*page["completedapps"], *page["activeapps"]]
        return [
            Application(
                one["id"], one["name"], one["state"], one["cores"],
                tuple(sorted(set(ran.get(one["id"], ())))),
            )
            for one in sorted(listed, key=lambda one: one["starttime"])
        ]  # fmt: skip

    def _wait(self, true: Callable[[], bool], daemon: Daemon) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            try:
                if true():
                    return
            except OSError:
                pass  # it does not listen yet
            if time.monotonic() > deadline:
                raise SparkFailed(
                    f"{daemon.name} is not up after {_UP_SECONDS:g} s: {daemon.last_words()}"
                )
            time.sleep(_LOOK_SECONDS)


def last_words(output: Path, lines: int = 1) -> str:
    """Return the last lines of what a process wrote."""
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    found = [line for line in text.splitlines() if line.strip()]
    return "\n".join(found[-lines:]) or "it said nothing"


def _answers(daemon: Daemon) -> bool:
    return bool(daemon.page())


def kill(processes: Iterable[int]) -> None:
    """Kill processes that we started, and return once they have ended. Raises `SparkFailed`."""
    deadline = time.monotonic() + _END_SECONDS
    left = [*processes]
    while left := [pid for pid in left if _runs(pid)]:
        if time.monotonic() > deadline:
            raise SparkFailed(f"processes {left} do not end: see what holds them")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS / 10)


def _runs(pid: int) -> bool:
    """Whether a process is more than an exit code that nobody has asked for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace")


def _parents(pid: int) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on."""
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])
        yield pid


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
