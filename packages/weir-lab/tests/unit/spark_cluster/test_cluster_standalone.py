"""A master and workers are started, listened to and ended; a small program stands for Spark."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

from weir_lab.spark_cluster import standalone
from weir_lab.spark_cluster.environments import SparkHome
from weir_lab.spark_cluster.standalone import Application, SparkFailed, Standalone, last_words

#: Answers like a master or a worker; starts an "executor" that does not end by itself.
FAKE = """
    import http.server, json, os, signal, subprocess, sys
    words = sys.argv[2:]
    port = int(words[words.index("--webui-port") + 1])
    json.dump(dict(os.environ), open("environment.json", "w"))
    print(words, flush=True)
    if os.path.exists("../die"):
        sys.exit("no room for " + sys.argv[1].rpartition(".")[2])
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal, subprocess, sys, time; "
         "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
         "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[2]]); "
         "time.sleep(600)", "CoarseGrainedExecutorBackend",
         "pyspark.daemon" if "worker-1" in os.getcwd() else "none"])
    print(child.pid, file=open("executor.pid", "w"), flush=True)

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/json/", self.path
            early = os.path.exists("early.html")
            body = open("early.html" if early else "page.json", "rb").read()
            if early:
                os.remove("early.html")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
"""


def home(folder: Path) -> SparkHome:
    """An environment with a Spark that is this small program."""
    bin = folder / "lib" / "python3.11" / "site-packages" / "pyspark" / "bin"
    bin.mkdir(parents=True)
    program = bin / "spark-class"
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(FAKE)}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return SparkHome(folder)


def listed(id: str, name: str, at: int, state: str = "FINISHED") -> dict[str, object]:
    return {"id": id, "name": name, "starttime": at, "state": state, "cores": 2}


def pages(folder: Path, alive: int = 2) -> None:
    master = {
        "status": "ALIVE", "aliveworkers": alive,
        "completedapps": [listed("app-2", "delays", 20)],
        "activeapps": [listed("app-3", "late", 30, "RUNNING"), listed("app-1", "rows", 10)],
    }  # fmt: skip
    workers = [
        {"executors": [{"appid": "app-3"}],
         "finishedexecutors": [{"appid": "app-1"}, {"appid": "app-1"}]},
        {"executors": [], "finishedexecutors": [{"appid": "app-1"}]},
    ]  # fmt: skip
    for name, page in zip(("master", "worker-1", "worker-2"), (master, *workers), strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "page.json").write_text(json.dumps(page))


@pytest.fixture
def cluster(tmp_path: Path) -> Standalone:
    folder = tmp_path / "run"
    pages(folder)
    homes = [home(tmp_path / name) for name in ("m", "w1", "w2")]
    return Standalone(folder, Path("/java"), homes[0], homes[1:])


def executors(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.glob("run/*/executor.pid"))]


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_what_the_pages_say_is_put_together(cluster: Standalone) -> None:
    with cluster:
        assert cluster.applications() == [
            Application("app-1", "rows", "FINISHED", 2, ("worker-1", "worker-2")),
            Application("app-2", "delays", "FINISHED", 2, ()),
            Application("app-3", "late", "RUNNING", 2, ("worker-1",)),
        ]


@pytest.mark.parametrize("text", ["", "<html>Spark Master</html>", "\xff"])
def test_a_page_that_is_not_json_yet_is_asked_for_again(
    cluster: Standalone, tmp_path: Path, text: str
) -> None:
    for name in ("master", "worker-1"):
        (tmp_path / "run" / name / "early.html").write_bytes(text.encode("latin-1"))
    with cluster:
        assert [one.id for one in cluster.applications()] == ["app-1", "app-2", "app-3"]


def test_spark_sees_nothing_of_this_environment(
    cluster: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("SPARK_HOME", "/elsewhere")
    with cluster:
        pass
    for name, made in (("master", "m"), ("worker-1", "w1"), ("worker-2", "w2")):
        found = json.loads((tmp_path / "run" / name / "environment.json").read_text())
        assert "PYTHONPATH" not in found
        assert found["SPARK_HOME"].startswith(str(tmp_path / made))
        assert found["JAVA_HOME"] == "/java"
        assert found["PATH"].split(":")[0] == str(tmp_path / made / "bin")
        # Every master would take the same port otherwise.
        assert "rest.enabled=false" in found["SPARK_MASTER_OPTS"]


def test_the_workers_are_told_of_their_master(cluster: Standalone, tmp_path: Path) -> None:
    with cluster:
        pass
    told = (tmp_path / "run/worker-1/output.log").read_text()
    assert f"'{cluster.url}']" in told
    assert "'--cores', '1'" in told
    assert str(tmp_path / "run/worker-1/work") in told


def test_all_that_was_started_has_ended(cluster: Standalone, tmp_path: Path) -> None:
    with cluster:
        started = executors(tmp_path)
        assert len(started) == 3
        assert all(map(lives, started))
    assert not any(map(lives, started))


def test_executors_are_found_by_the_python_that_they_run(
    cluster: Standalone, tmp_path: Path
) -> None:
    first, second = cluster.workers
    assert first.executors() == []
    with cluster:
        deadline = time.monotonic() + 10
        while not first.executors():
            assert time.monotonic() < deadline
        told = (tmp_path / "run/worker-1/executor.pid").read_text()
        assert first.executors() == [int(told)]
        assert second.executors() == []  # it runs no Python yet


def test_one_that_does_not_come_up_says_why(cluster: Standalone, tmp_path: Path) -> None:
    (tmp_path / "run" / "die").touch()
    with pytest.raises(SparkFailed, match="master has ended: no room for Master"), cluster:
        pass


def test_workers_that_the_master_does_not_count_are_waited_for(
    cluster: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages(tmp_path / "run", alive=1)
    monkeypatch.setattr(standalone, "_UP_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(SparkFailed, match="master is not up after 1 s"), cluster:
        pass
    assert time.monotonic() - began > 1
    # Those that did come up have ended.
    assert not any(map(lives, executors(tmp_path)))


def test_the_last_words_are_lines_with_something_in_them(tmp_path: Path) -> None:
    output = tmp_path / "log"
    assert last_words(output) == "it said nothing"
    output.write_bytes(b"first\n\xff second\n\n  \n")
    assert last_words(output) == "\ufffd second"
    assert last_words(output, 2) == "first\n\ufffd second"
