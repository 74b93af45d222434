"""What `weir doctor` looks at: each check returns a finding, and each finding says what to do."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial, wraps
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from weir.access.failures import FREE_FAILURES, Failures, origin_of
from weir.cli.doctor.exposure import access, certificate, links
from weir.cli.doctor.figures import asked_for_damage, news
from weir.cli.doctor.finding import Finding, Patient, State, running
from weir.cli.doctor.promotions import left_behind, promotion
from weir.cli.doctor.relay import relays
from weir.cli.output import counted
from weir.cli.process import EXTRAS, what_to_do
from weir.errors import (
    BadRequest,
    Disconnected,
    NoJava,
    NotAuthenticated,
    Unauthorized,
    UnknownTopic,
    WeirError,
)
from weir.model.limits import (
    CONNECTIONS_MAX,
    FORMAT_LEVEL_SCHEMAS,
    FORMAT_LEVEL_STAGING,
    FORMAT_LEVEL_TOPOLOGY,
    MIB,
)
from weir.model.topic import BAD

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.protocol.client.nodes import SetInfo, SetList

R = TypeVar("R")

_SYNCS = 20
#: Below this a sync did not reach any disk that we know of; above it, users feel it.
_SYNC_MS_LEAST, _SYNC_MS_MOST = 0.01, 25.0
_BACKLOG_LEAST = 1_024
#: The clock is wrong if it shows a day before this release could exist: 2025-01-01.
_SANE_SECONDS = 1_735_689_600

#: The releases of PySpark that the extra `spark` asks for.
_PYSPARK_LEAST, _PYSPARK_BELOW = (4, 2), (4, 4)
_PYTHON_SECONDS = 10.0
#: Each is asked for its clusters: a look must not take minutes.
_TOPICS_ASKED = 256

#: What to do to look into a set that is closed.
_LOG_IN = "to look further, log in: export WEIR_URL=weir://USER@HOST:PORT and WEIR_PASSWORD_FILE"


def python(patient: Patient) -> Finding:
    """Look at the interpreter and its event loop."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if find_spec("uvloop") is None:
        advice = "the slower loop of asyncio is used: pip install 'weir-mq[fast]'"
        return Finding("python", "warn", f"{version} without uvloop", advice)
    return Finding("python", "ok", f"{version} with uvloop")


def extras(patient: Patient) -> Finding:
    """Say which optional parts are installed."""
    there = [name for name, needs in EXTRAS.items() if all(map(find_spec, needs))]
    missing = [name for name in EXTRAS if name not in there]
    advice = f"if you need them: pip install 'weir-mq[{','.join(missing)}]'" if missing else ""
    return Finding("extras", "ok", ", ".join(there) or "none", advice)


def spark(patient: Patient) -> Finding:
    """Look whether Spark can be started here: its release, Java, and the Python of its workers."""
    if find_spec("pyspark") is None:
        return Finding("spark", "ok", "PySpark is not installed, and no node needs it")
    from weir.spark.session import find_java

    release = version("pyspark")
    try:
        java = find_java()
    except NoJava as error:
        advice = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
        return Finding("spark", "fail", str(error), advice)
    found = f"PySpark {release}, Java {java.version} in {java.home}"
    series = tuple(int(part) for part in release.split(".")[:2])
    if not _PYSPARK_LEAST <= series < _PYSPARK_BELOW:
        advice = "weir was tried with PySpark 4.2 and 4.3: pip install 'weir-mq[spark]'"
        return Finding("spark", "warn", found, advice)
    workers = os.environ.get("PYSPARK_PYTHON", sys.executable)
    theirs, ours = _minor_version(workers), platform.python_version_tuple()[:2]
    if theirs != ".".join(ours):
        return Finding(
            "spark", "fail", f"PYSPARK_PYTHON is {workers}, " + (
                f"Python {theirs}, and this is {'.'.join(ours)}" if theirs else "which does not run"
            ),
            "workers need the Python that the driver has: unset PYSPARK_PYTHON, or set it to one "
            "of the same version",
        )  # fmt: skip
    return Finding("spark", "ok", found)


def _minor_version(python: str) -> str:
    """Return the version of an interpreter, such as "3.11"; "" if it cannot be run."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=_PYTHON_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def clock(patient: Patient) -> Finding:
    """Look whether the clock can be right: stamps come from it."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    advice = "set the clock, and let NTP keep it (timedatectl set-ntp true)"
    if now < _SANE_SECONDS:
        return Finding("clock", "fail", shown, advice)
    newest = max((path.stat().st_mtime for path in patient.folder.glob("log-*/*")), default=0.0)
    if newest > now + 1.0:
        behind = f"{shown}, {newest - now:,.0f} s before the last write to the log"
        return Finding("clock", "fail", behind, advice)
    return Finding("clock", "ok", shown)


def sync(patient: Patient) -> Finding:
    """Measure how long a small durable write takes: what a lone publish waits for."""
    took: list[float] = []
    try:
        with tempfile.NamedTemporaryFile(dir=patient.place, prefix=".weir-doctor-") as file:
            os.write(file.fileno(), bytes(64 * 1024))
            os.fsync(file.fileno())
            for turn in range(_SYNCS):
                began = time.perf_counter()
                os.pwrite(file.fileno(), bytes([turn]) * 4096, turn % 16 * 4096)
                os.fdatasync(file.fileno())
                took.append((time.perf_counter() - began) * 1_000)
    except OSError as error:
        advice = what_to_do(error) or "check the disk (dmesg)"
        return Finding("sync", "fail", f"{patient.place}: {error.strerror}", advice)
    median = statistics.median(took)
    shown = f"{median:.2f} ms, worst {max(took):.2f} ms, in {patient.place}"
    if median < _SYNC_MS_LEAST:
        return Finding("sync", "warn", shown, "too fast for a disk (is it memory?): "
                       "confirmed messages may not survive a power cut")  # fmt: skip
    if median > _SYNC_MS_MOST:
        return Finding("sync", "warn", shown, "slow: put the folder on a disk of its own, best an "
                       "SSD with power-loss protection")  # fmt: skip
    return Finding("sync", "ok", shown)


def room(patient: Patient) -> Finding:
    """Look at the room on the disk."""
    disk = os.statvfs(patient.place)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    log = patient.config.log
    least = patient.logs * (log.spares + 3) * log.segment_mib * MIB
    shown = f"{free / 2**30:,.1f} GiB free of {size / 2**30:,.1f} GiB"
    if free < least and not (patient.folder / "node.json").exists():
        return Finding("room", "fail", shown, f"a new node takes {least // MIB:,} MiB at "
                       "first: free space, or give --data a folder on another disk")  # fmt: skip
    if free < log.segment_mib * MIB:
        return Finding("room", "fail", shown, "no further segment fits, and publishes are "
                       "refused once the present ones are full: free space")  # fmt: skip
    if free < size / 10:
        return Finding(
            "room", "warn", shown, "less than a tenth is free: at 0 publishes are refused"
        )
    return Finding("room", "ok", shown)


def memory(patient: Patient) -> Finding:
    """Look whether what the settings allow fits in memory."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    memory = patient.config.memory
    shards = min(patient.config.node.shards or os.cpu_count() or 1, patient.logs)
    # Frames that are not whole yet have as much as the budget beside it.
    wanted = shards * (2 * memory.budget_mib + memory.cache_mib)
    shown = f"{wanted:,} of {there:,} MiB in {shards:,} shards"
    if wanted > there * 3 // 4:
        return Finding("memory", "fail", shown, "lower budget_mib or cache_mib in [memory]")
    return Finding("memory", "ok", shown)


def files(patient: Patient) -> Finding:
    """Look how many connections this user may have open: a node raises its own limit so far."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = hard == resource.RLIM_INFINITY
    shown = "no limit" if endless else f"up to {hard:,} open files"
    if endless or hard >= CONNECTIONS_MAX + 100:
        return Finding("files", "ok", shown)
    state: State = "fail" if hard < 256 else "warn"
    return Finding("files", state, shown, f"a connection takes one, and up to {CONNECTIONS_MAX:,} "
                   "are served: ulimit -Hn 65536, or LimitNOFILE=65536 in the unit")  # fmt: skip


def backlog(patient: Patient) -> Finding:
    """Look how many connections may wait to be accepted."""
    try:
        many = int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii"))
    except OSError:
        return Finding("backlog", "ok", "not told by this system")
    if many < _BACKLOG_LEAST:
        return Finding("backlog", "warn", f"somaxconn {many:,}", "connections of many devices at "
                       "once will be refused: sysctl net.core.somaxconn=4096")  # fmt: skip
    return Finding("backlog", "ok", f"somaxconn {many:,}")


def folder(patient: Patient) -> Finding:
    """Look at the data folder: whose it is, and whether it may be used."""
    from weir.server.disk.node_folder import NodeFolder

    path = patient.folder
    if not path.exists():
        return Finding("folder", "ok", f"{path} is not there yet; `weir serve` makes it")
    if not path.is_dir() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        advice = "give --data a folder that this user may read and write"
        return Finding("folder", "fail", f"{path} cannot be used by this user", advice)
    try:
        founded = NodeFolder(path).founded()
    except WeirError as error:
        return Finding("folder", "fail", str(error), "restore it: weir restore")
    if founded is None:
        if any(path.glob("log-*")):
            return Finding("folder", "fail", f"{path} has logs and no node.json",
                           "restore it: weir restore")  # fmt: skip
        return Finding("folder", "ok", f"{path} is no node's yet")
    shown = f"{path} of system {founded.system:x}, node {founded.node}, {founded.logs} logs"
    return Finding("folder", "ok", shown)


def damage(patient: Patient) -> Finding:
    """Look for damaged places: a stopped node's logs are read, a running node is asked."""
    from weir.cli.survey import NotALog, log_folders, survey
    from weir.server.disk.file_disk import FolderInUse

    advice = "copy what can be read (weir backup), replace the disk, restore a backup"
    try:
        elsewhere = patient.config.log.position_folder
        found = [
            survey(path, positions=Path(elsewhere) / path.name if elsewhere else None)
            for path in log_folders(patient.folder)
        ]
    except FolderInUse:
        return asked_for_damage(patient, advice)
    except NotALog:
        return Finding("damage", "ok", f"there are no logs in {patient.folder}")
    bad = [one.damage for one in found if one.damage]
    if bad:
        return Finding("damage", "fail", "; ".join(bad), advice)
    size = sum(segment.used_bytes for one in found for segment in one.segments)
    return Finding("damage", "ok", f"none in {size // MIB:,} MiB of {len(found)} logs")


def endpoint(patient: Patient) -> Finding:
    """Ask the node that runs on the folder, if one does."""
    from weir.cli.connection import connected

    path = patient.folder
    node = running(patient)
    if node is None:
        state: State = "fail" if patient.must_run else "ok"
        advice = f"start one: weir serve --data {path}" if patient.must_run else ""
        return Finding("endpoint", state, f"no node runs on {path}", advice)
    url, pid = node
    try:
        took, own = connected(url, _asked)
        for port in own:
            connected(f"{url.rpartition(':')[0]}:{port}", _asked)
    except NotAuthenticated:
        return Finding("endpoint", "ok", f"{url} answers: it is closed to strangers", _LOG_IN)
    except WeirError as error:
        known = left_behind(error)
        advice = known.advice if known else "see its log on stderr; both must be of one release"
        found = f"{url} (process {pid}) does not serve: {error}"
        return Finding("endpoint", "fail", found, advice)
    shards = f", and so do its {len(own)} shards" if own else ""
    return Finding("endpoint", "ok", f"{url} answers in {took:.1f} ms{shards}")


class _Ask(Protocol):
    """Asks the node that runs on a folder."""

    def __call__(self, call: Callable[[Client], Awaitable[R]], /) -> R:
        """Return what it answers. Raises `WeirError`."""


def _asked_of_node(
    name: str,
) -> Callable[[Callable[[_Ask], Finding]], Callable[[Patient], Finding]]:
    """Make a check that asks the node that runs on a folder; where none runs, all is well."""

    def decorate(look: Callable[[_Ask], Finding]) -> Callable[[Patient], Finding]:
        @wraps(look)
        def check(patient: Patient) -> Finding:
            from weir.cli.connection import connected

            node = running(patient)
            if node is None:
                return Finding(name, "ok", f"no node runs on {patient.folder}")
            return look(partial(connected, node[0]))

        return check

    return decorate


@_asked_of_node("level")
def level(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder which format level its set writes."""
    listed = ask(lambda client: client.nodes.list())
    supported = min((row.level for row in listed.nodes), default=listed.level)
    if listed.level < supported:
        return Finding(
            "level", "warn",
            f"format level {listed.level} is written, and all nodes support {supported}",
            "weir node raise-level, once you need no way back to the release before: schemas need "
            f"level {FORMAT_LEVEL_SCHEMAS}, sinks need level {FORMAT_LEVEL_STAGING}",
        )  # fmt: skip
    return Finding("level", "ok", f"format level {listed.level} is written")


@_asked_of_node("nodes")
def nodes(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder which nodes were added and have not come yet."""
    rows = [row for row in ask(lambda client: client.nodes.list()).nodes if row.state != "removed"]
    if away := [row for row in rows if not row.shards]:
        told = ", ".join(f"{row.id} ({row.host}:{row.port})" for row in away)
        return Finding(
            "nodes", "warn", f"nodes that were added and have not connected yet: {told}",
            "start them as weir node add said. If its command is lost, the same weir node add "
            "HOST:PORT prints another. If they are not needed: weir node remove NODE",
        )  # fmt: skip
    return Finding("nodes", "ok", f"all {len(rows)} nodes have come")


@_asked_of_node("sets")
def sets(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder which BrokerSets could not be lost."""
    listed = ask(lambda client: client.nodes.list())
    if listed.level < FORMAT_LEVEL_TOPOLOGY:
        return Finding("sets", "ok", "there is one set, as before format level 3")
    return judge_sets(ask(lambda client: client.nodes.sets()))


def judge_sets(listed: SetList) -> Finding:
    """Return what is to be mended first."""
    core = [one for one in listed.sets if one.tier == "core"]
    uses_sets = any(one.id for one in core)
    if uses_sets and listed.unknown:
        numbers = ", ".join(map(str, listed.unknown))
        return Finding(
            "sets", "warn", f"nodes that have not said of which BrokerSet they are: {numbers}",
            "groups are not placed by sets before all have: start those nodes, or drain and remove "
            "them (weir node drain)",
        )  # fmt: skip
    if empty := [_name(one) for one in core if not one.nodes]:
        return Finding(
            "sets", "warn", f"core sets of the topology without a node: {', '.join(empty)}",
            "add their nodes (weir node add HOST:PORT --brokerset NAME), or take the sets out of "
            "the topology",
        )  # fmt: skip
    if listed.rule == "apart" and (full := [one for one in core if one.majorities]):
        told = "; ".join(f"{_name(one)}: {one.majorities:,} groups" for one in full)
        registry = ", the registry among them" if any(one.has_registry for one in full) else ""
        return Finding(
            "sets", "warn", f"most voters lie in one set ({told}{registry})",
            "they stop when that set is lost. They move while weir node status shows MOVING; else "
            "give other sets nodes, activate drained ones, or create topics with three replicas",
        )  # fmt: skip
    told = {
        "none": "replicas are placed by nodes, not by sets",
        "home": "all vote in the home set, as far as it has nodes: the other one may be lost",
        "apart": "any one set may be lost",
    }[listed.rule]
    return Finding("sets", "ok", f"{len(core)} core sets: {told}")


def _name(one: SetInfo) -> str:
    return one.name or f"set {one.id}"


@_asked_of_node("fleets")
def fleets(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder whether it opens the keys of all fleets."""
    listed = ask(lambda client: client.fleets.list())
    if not ask(lambda client: client.fleets.opens_keys()):
        return Finding(
            "fleets", "fail", f"keys of {counted(len(listed), 'fleet')} do not open here",
            "devices of these fleets cannot connect to this node: set access.key_file to a copy of "
            "the file that other nodes have, and restart it",
        )  # fmt: skip
    return Finding("fleets", "ok", f"{counted(len(listed), 'fleet')}, whose keys open here")


@_asked_of_node("secrets")
def secrets_at_rest(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder whether secrets are wrapped by its first key."""
    users = len(ask(lambda client: client.access.describe()).users)
    try:
        left = ask(lambda client: client.access.secrets_left())
    except BadRequest:
        if not users:
            return Finding("secrets", "ok", "no users, and no key file")
        return Finding(
            "secrets", "warn", f"verifiers of {counted(users, 'user')} are stored unwrapped",
            "anybody with a copy of the disk can try passwords: weir access key, set "
            "access.key_file on all nodes, restart them in turn, then: weir access rewrap",
        )  # fmt: skip
    if left:
        found = f"not wrapped by the first key: {counted(left, 'secret')}"
        advice = "weir access rewrap, before the key file loses another key"
        return Finding("secrets", "warn", found, advice)
    return Finding("secrets", "ok", f"of {counted(users, 'user')}, wrapped by the first key")


@_asked_of_node("quotas")
def quotas(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder whose quotas are used up, or make peers wait."""
    listed = ask(lambda client: client.quotas.list())
    full = [
        f"{one.entity}: {quota} {one.used.get(quota, 0):,} of {limit:,}"
        for one in listed
        for quota, limit in one.limits.items()
        if one.used.get(quota, 0) >= limit
    ]
    if full:
        return Finding(
            "quotas", "warn", "; ".join(full[:3]) + ("; ..." if len(full) > 3 else ""),
            "these are refused more, or wait: weir quota set ENTITY raises a quota, weir quota "
            "show ENTITY says for how long its connections waited",
        )  # fmt: skip
    return Finding("quotas", "ok", f"namespaces and principals with quotas: {len(listed):,}")


@_asked_of_node("tokens")
def tokens(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder whether it opens the keys that sign tokens."""
    keys = ask(lambda client: client.access.token_keys())
    if not ask(lambda client: client.access.opens_token_keys()):
        return Finding(
            "tokens", "fail", "the keys that sign tokens do not open here",
            "no token is issued by this node: set access.key_file to a copy of the file that other "
            "nodes have, and restart it; or weir token key add, and remove the one before",
        )  # fmt: skip
    return Finding("tokens", "ok", f"tokens are verified by {counted(len(keys), 'key')}")


@_asked_of_node("clusters")
def clusters(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder which clusters and queries lost messages to retention,
    and where queries put values that do not parse.
    """
    skipped, bad = ask(_lost)
    if skipped:
        return Finding(
            "clusters", "warn", "messages went past retention before they were done: "
            + "; ".join(skipped[:3]) + ("; ..." if len(skipped) > 3 else ""),
            "give the topic a longer retention, or retention until-done; a query continues after "
            "the gap only with onDataLoss=earliest",
        )  # fmt: skip
    if bad:
        return Finding(
            "clusters", "warn", "values that did not parse: "
            + "; ".join(bad[:3]) + ("; ..." if len(bad) > 3 else ""),
            "weir tail TOPIC.bad shows reason, offset and bytes; delete the topic once it is clear",
        )  # fmt: skip
    return Finding("clusters", "ok", "none lost messages to retention")


async def _lost(client: Client) -> tuple[list[str], list[str]]:
    """Return which clusters skipped messages, and which topics of bad values are not empty."""
    skipped, bad = [], []
    for topic in (await client.topics())[:_TOPICS_ASKED]:
        name = topic.full_name
        skipped += [
            f"{name}, {one.name}: {one.skipped:,}"
            for one in await client.clusters(name)
            if one.skipped
        ]
        if name.endswith(BAD):
            first, behind = await client.positions(name)
            if count := sum(behind) - sum(first):
                bad.append(f"{name}: {count:,}")
    return skipped, bad


@_asked_of_node("audit")
def audit(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder whether the audit topic is led, and lacks anything."""
    try:
        (stats,) = ask(lambda client: client.topic_stats(_AUDIT))
        dropped = ask(_dropped)
    except (UnknownTopic, Unauthorized):
        return Finding("audit", "ok", f"no topic {_AUDIT} that you may read")
    except Disconnected:
        return Finding(
            "audit", "fail", f"topic {_AUDIT} does not answer: administration waits for it",
            f"weir node status and weir topic describe {_AUDIT} tell which nodes have it",
        )  # fmt: skip
    if dropped:
        return Finding(
            "audit", "warn", f"{dropped:,} logins and denials of the last day are not in {_AUDIT}",
            "the topic took no messages for a while, or too many failed at once: weir audit "
            "--verb drop --since -1d tells when",
        )  # fmt: skip
    return Finding("audit", "ok", f"{counted(stats.messages, 'message')} in topic {_AUDIT}")


async def _dropped(client: Client) -> int:
    """Return how many events of the last day no shard had room for."""
    import json

    found = 0
    async with client.reader(_AUDIT, start="-1d", follow=False) as reader:
        async for delivered in reader.batches():
            for message in delivered.messages():
                event = json.loads(message.value)
                found += event["count"] if event["outcome"] == "dropped" else 0
    return found


@_asked_of_node("logins")
def logins(ask: _Ask) -> Finding:
    """Ask the node that runs on the folder which users and addresses have failed logins that slow
    new ones.
    """
    try:
        users, addresses = judge_logins(ask(_failed_logins))
    except (UnknownTopic, Unauthorized, Disconnected):
        return Finding("logins", "ok", f"not looked for: it takes topic {_AUDIT}, which you may "
                       "not read, or which does not answer")  # fmt: skip
    told = [
        f"{what} " + ", ".join(some[:3]) + (", ..." if len(some) > 3 else "")
        for what, some in (("of", users), ("from", addresses))
        if some
    ]
    if told:
        return Finding(
            "logins", "warn", f"logins {' and '.join(told)} failed so often that they were slowed",
            "a program has an old password, or somebody guesses: weir audit --verb login "
            "--outcome refused --since -1h shows the addresses",
        )  # fmt: skip
    return Finding("logins", "ok", "none was slowed in the last hour")


async def _failed_logins(client: Client) -> list[tuple[float, int, str, str]]:
    """Return when logins of the last hour failed, in seconds since 1970, how many did, of which
    user and from which address.
    """
    import json

    found = []
    async with client.reader(_AUDIT, start="-1h", follow=False) as reader:
        async for delivered in reader.batches():
            for message in delivered.messages():
                one = json.loads(message.value)
                if (one["verb"], one["outcome"]) == ("login", "refused"):
                    at = one["at"] / 1_000
                    found.append((at, one["count"], one["resource"], one["whence"]))
    return found


def judge_logins(failed: Iterable[tuple[float, int, str, str]]) -> tuple[list[str], list[str]]:
    """Return the users, and the addresses, whose logins nodes slow by these failures: (seconds, how
    many, user, address). Each node counts by itself, so these are what one node would slow.
    """
    users, addresses = Failures(), Failures()
    slowed: tuple[dict[str, None], dict[str, None]] = ({}, {})
    for at, count, user, whence in sorted(failed):
        for known, key, slow in (
            (users, user, slowed[0]), (addresses, origin_of(whence), slowed[1]),
        ):  # fmt: skip
            for _ in range(min(count, FREE_FAILURES + 1)):
                known.failed(key, at)
            if known.wait(key, at):
                slow[key] = None
    return [*slowed[0]], [*slowed[1]]


async def _asked(client: Client) -> tuple[float, tuple[int, ...]]:
    """Return how many milliseconds an answer took, and the shards' own ports."""
    began = time.perf_counter()
    await client.ping()
    return (time.perf_counter() - began) * 1_000, client.welcome.ports


def context(patient: Patient) -> Finding:
    """Look whether the context in use can be read, and the files that it names."""
    from weir.cli.access.contexts import BadContext, chosen_context
    from weir.client.connection.credentials import read_password_file

    advice = "weir context show, and weir context add NAME --url URL to replace it"
    try:
        name, found = chosen_context()
        if found is None:
            return Finding("context", "ok", "none is in use")
        for file in (found.ca, found.certificate, found.key):
            if file:
                with Path(file).open("rb"):
                    pass
        if found.password_file:
            read_password_file(Path(found.password_file))
    except BadContext as error:
        return Finding("context", "fail", str(error), advice)
    except ValueError as error:
        return Finding("context", "fail", str(error), "weir user password gives a user a new one")
    except OSError as error:
        return Finding("context", "fail", f"{error.filename}: {error.strerror}", advice)
    return Finding("context", "ok", f"{name}: {found.address}")


_AUDIT = "_weir/audit"
#: All checks in the order they are shown.
CHECKS: dict[str, Callable[[Patient], Finding]] = {
    "python": python,
    "extras": extras,
    "spark": spark,
    "clock": clock,
    "sync": sync,
    "room": room,
    "memory": memory,
    "files": files,
    "backlog": backlog,
    "folder": folder,
    "certificate": certificate,
    "access": access,
    "links": links,
    "context": context,
    "damage": damage,
    "endpoint": endpoint,
    "news": news,
    "level": level,
    "nodes": nodes,
    "sets": sets,
    "promotion": promotion,
    "relays": relays,
    "fleets": fleets,
    "secrets": secrets_at_rest,
    "quotas": quotas,
    "tokens": tokens,
    "clusters": clusters,
    "audit": audit,
    "logins": logins,
}


def examine(patient: Patient, only: Collection[str] = ()) -> list[Finding]:
    """Make all checks, or those named; one that cannot be made is a finding as well."""
    findings = []
    for name, check in CHECKS.items():
        if only and name not in only:
            continue
        try:
            findings.append(check(patient))
        except NotAuthenticated:
            findings.append(
                Finding(name, "warn", "not looked for: the set is closed to strangers", _LOG_IN)
            )
        except WeirError as error:
            findings.append(Finding(name, "fail", str(error), "fix that, then check again"))
        except OSError as error:
            shown = f"{error.filename or patient.folder}: {error.strerror or error}"
            advice = what_to_do(error) or "fix that, then check again"
            findings.append(Finding(name, "fail", shown, advice))
    return findings
