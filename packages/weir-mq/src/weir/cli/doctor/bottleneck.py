"""`weir doctor --live`: watch a loaded node, and name what limits it.

`watch` takes the node's figures before and after, and those of its machine; `judge` reads nothing,
and says what they mean together.
"""

from __future__ import annotations

import os
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from weir.errors import WeirError

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.client.nodes import SetStatus

Resource = Literal["disk", "processor", "network", "follower", "memory", "clients", "nothing"]

#: Of the time, or of what there is: from here on a resource is what limits the node.
BUSY = 0.7
#: Of all segments that TCP sent: more that were sent again cost throughput.
RETRANSMITTED = 0.02
#: A batch waits for a flush here, its own, as many by a follower, and the way there and back.
_FLUSHES_TO_COMMIT = 5
_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PAGE_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_SECTOR = 512


class Figures:
    """One page of `/metrics`: values by name and labels."""

    def __init__(self, page: str) -> None:
        """Take the text of a page."""
        self._values: dict[str, list[tuple[dict[str, str], float]]] = {}
        for line in page.splitlines():
            if (found := _LINE.match(line)) is not None:
                name, labels, value = found.groups()
                pairs = dict(_LABEL.findall(labels or ""))
                self._values.setdefault(name, []).append((pairs, float(value)))

    def total(self, name: str) -> float:
        """Return the sum over all labels; 0 if there is no such figure."""
        return sum(value for _, value in self._values.get(name, ()))

    def rows(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of a figure."""
        return self._values.get(name, [])

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a figure by one of its labels, summed over the others."""
        found: Counter[str] = Counter()
        for labels, value in self._values.get(name, ()):
            found[labels.get(label, "")] += value  # type: ignore[assignment]
        return dict(found)


class Shard(msgspec.Struct, frozen=True):
    """One shard: its figures at both ends, which parts of the time its loop computed and waited
    for a processor, and how often it was seen in which stage.
    """

    before: Figures
    after: Figures
    works: float = 0.0
    waits: float = 0.0
    stages: Mapping[str, int] = msgspec.field(default_factory=dict)

    def gained(self, name: str) -> float:
        """Return by how much a figure grew."""
        return self.after.total(name) - self.before.total(name)

    def gained_by(self, name: str, label: str) -> dict[str, float]:
        """Return by how much a figure grew, by a label."""
        before = self.before.by(name, label)
        return {
            key: value - before.get(key, 0) for key, value in self.after.by(name, label).items()
        }


class Machine(msgspec.Struct, frozen=True):
    """What the system says of the time between. Parts of 1; `sent_bytes` a second.

    `disk_queue` is how many requests lay at the disk on average; `link_bytes` a second are what the
    fastest network interface can send, 0 where nobody knows.
    """

    processor: float = 0.0
    disk_busy: float = 0.0
    disk_queue: float = 0.0
    sent_bytes: float = 0.0
    link_bytes: float = 0.0
    retransmitted: float = 0.0


class Watch(msgspec.Struct, frozen=True):
    """All that was seen in `seconds`. `lagging` says by node in which part of the looks one of its
    replicas was not up to date; the other nodes are `followers`, and `silent` ones did not answer
    at some look; `budget` is the part of the byte budget that was used.
    """

    seconds: float
    shards: Sequence[Shard]
    machine: Machine = Machine()
    lagging: Mapping[int, float] = msgspec.field(default_factory=dict)
    followers: Collection[int] = ()
    silent: Collection[int] = ()
    budget: float = 0.0


class Row(msgspec.Struct, frozen=True):
    """One resource: how busy it is (1 is all of it), what was found, what would help."""

    resource: Resource
    busy: float
    found: str
    advice: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What limits the node, and every resource that was looked at."""

    limit: Resource
    because: str
    messages_in: float
    messages_out: float
    rows: list[Row]


def judge(watch: Watch) -> Verdict:
    """Name what limits the node: the busiest resource, if one is busy; else its clients."""
    rows = [_disk(watch), _processor(watch), _network(watch), _follower(watch), _memory(watch)]
    came = sum(one.gained("weir_messages_in_total") for one in watch.shards) / watch.seconds
    went = sum(one.gained("weir_messages_out_total") for one in watch.shards) / watch.seconds
    clients = _clients(watch)
    busiest = max(rows, key=lambda row: row.busy)
    limit: Resource = "nothing"
    because = "nothing is published and nothing is handed out"
    if (came or went) and busiest.busy >= BUSY:
        limit, because = busiest.resource, busiest.found
    elif came or went:
        limit, because = "clients", clients.found
    return Verdict(limit, because, came, went, [*rows, clients])


def _disk(watch: Watch) -> Row:
    busy, mean_ms, which, count = 0.0, 0.0, "", 0.0
    for shard in watch.shards:
        counts = shard.gained_by("weir_flush_seconds_count", "log")
        for log, took in shard.gained_by("weir_flush_seconds_sum", "log").items():
            count += counts[log]
            if took / watch.seconds >= busy and counts[log]:
                busy, which = took / watch.seconds, log
                mean_ms = took / counts[log] * 1_000
    machine = watch.machine
    found = (
        f"log {which} writes and syncs {busy:.0%} of the time, {mean_ms:.2f} ms each, "
        f"{count / watch.seconds:,.0f} a second; the disk's queue holds {machine.disk_queue:.1f}"
        if which
        else "nothing was written"
    )
    advice = "put the folder on a faster disk, or the logs on several" if busy >= BUSY else ""
    return Row("disk", min(busy, 1.0), found, advice)


def _processor(watch: Watch) -> Row:
    """Each shard is one loop: it is limited where that computes, or waits to, all the time."""
    number, shard = max(enumerate(watch.shards), key=lambda one: one[1].works + one[1].waits)
    found = f"shard {number}'s loop works {shard.works:.0%} of the time"
    if total := sum(shard.stages.values()):
        most = sorted(shard.stages.items(), key=lambda one: one[1], reverse=True)[:4]
        found += f" ({', '.join(f'{stage} {seen / total:.0%}' for stage, seen in most)})"
    found += f" and waits for a processor {shard.waits:.0%}"
    found += f"; all processors are used {watch.machine.processor:.0%}"
    busy = min(shard.works + shard.waits, 1.0)
    if busy < BUSY:
        return Row("processor", busy, found)
    if shard.waits > shard.works:
        return Row(
            "processor",
            busy,
            found,
            "other programs use the processors: move them to another machine",
        )
    advice = "publish in larger batches, run more shards, or move leaders to other nodes"
    return Row("processor", busy, found, advice)


def _network(watch: Watch) -> Row:
    machine = watch.machine
    part = machine.sent_bytes / machine.link_bytes if machine.link_bytes else 0.0
    found = f"{machine.sent_bytes / 1e6:,.1f} MB/s sent"
    if machine.link_bytes:
        found += f", {part:.0%} of what the interface can"
    found += f"; {machine.retransmitted:.2%} of all segments were sent again"
    busy = max(part, BUSY if machine.retransmitted >= RETRANSMITTED else 0.0)
    advice = "look at the network between the nodes and to the clients" if busy >= BUSY else ""
    return Row("network", min(busy, 1.0), found, advice)


def _follower(watch: Watch) -> Row:
    """Name the follower that is behind. One that does not answer holds nothing up, for the others
    confirm without it; it is told all the same.
    """
    gone = f"no answer of node {', '.join(map(str, sorted(watch.silent)))}; " * bool(watch.silent)
    node, part = max(watch.lagging.items(), key=lambda one: one[1], default=(0, 0.0))
    slow = [node] if node else sorted(watch.followers)
    names = " or ".join(map(str, slow))
    waits, words = _waits_for_others(watch)
    if slow and waits >= BUSY and waits > part:
        part, found = waits, f"{gone}{words} for node {names}"
    elif node:
        found = f"{gone}replicas of node {node} are behind in {part:.0%} of the looks"
    else:
        others = "all others" if gone else "all replicas"
        found = f"{gone}{others} are up to date whenever looked at"
    advice = f"look at the disk, the processor and the network of node {names}"
    return Row("follower", part, found, advice if part >= BUSY else "")


def _waits_for_others(watch: Watch) -> tuple[float, str]:
    """Return which part of the time to its commit a batch waits for followers beyond what one as
    quick as this node takes, and that in words; 0 while this node's loops keep the batches back.
    """
    commits, waited, flushes, flushed = (
        sum(shard.gained(f"weir_{name}") for shard in watch.shards)
        for name in (
            "commit_seconds_count", "commit_seconds_sum", "flush_seconds_count",
            "flush_seconds_sum",
        )
    )  # fmt: skip
    if not (commits and waited and flushes) or _processor(watch).busy >= BUSY:
        return 0.0, ""
    commit_ms, flush_ms = waited / commits * 1_000, flushed / flushes * 1_000
    words = f"a batch waits {commit_ms:.2f} ms for its commit, and a sync here takes {flush_ms:.2f}"
    return max(1 - _FLUSHES_TO_COMMIT * flush_ms / commit_ms, 0.0), f"{words} ms: it waits"


def _memory(watch: Watch) -> Row:
    holds = sum(one.gained("weir_holds_total") for one in watch.shards)
    found = f"{watch.budget:.0%} of the byte budget is used; reading stopped {holds:,.0f} times"
    busy = max(watch.budget, BUSY if holds > watch.seconds else 0.0)
    advice = "raise memory.budget_mib, or see why consumers read slowly" if busy >= BUSY else ""
    return Row("memory", min(busy, 1.0), found, advice)


def _clients(watch: Watch) -> Row:
    """By Little's law: what waited all together, divided by the time, is what was under way."""
    waited = sum(one.gained("weir_commit_seconds_sum") for one in watch.shards)
    commits = sum(one.gained("weir_commit_seconds_count") for one in watch.shards)
    connections = sum(one.after.total("weir_connections") for one in watch.shards)
    if not commits:
        return Row("clients", 0.0, f"{connections:,.0f} connections, none of which publishes")
    found = (
        f"{connections:,.0f} connections keep {waited / watch.seconds:.1f} batches under way, of "
        f"{waited / commits * 1_000:.2f} ms each"
    )
    advice = "let clients keep more in flight (linger, window), in larger batches"
    return Row("clients", 0.0, found, advice)


class NotWatched(WeirError):
    """The node cannot be watched; the message says what is missing."""


def watch(folder: Path, metrics: str, seconds: float, url: str) -> Watch:
    """Look at the node in `folder` for `seconds`; its figures are at `metrics`, one port a shard.

    Raises `NotWatched`.
    """
    from weir.cli.connection import connected
    from weir.server.config import split_address

    async def ask(client: Client) -> int:
        return max(len(client.welcome.ports), 1)

    host, port = split_address(metrics)
    shards = connected(url, ask)
    shown = f"[{host}]" if ":" in host else host
    pages = [f"http://{shown}:{port + shard}" for shard in range(shards)]
    before = [Figures(_page(f"{page}/metrics")) for page in pages]
    system, began = _System.now(folder), time.monotonic()
    sampled: list[list[dict[str, float]]] = [[] for _ in pages]
    lagging: Counter[int] = Counter()
    followers: set[int] = set()
    silent: set[int] = set()
    budgets, looks = [0.0], 0
    with ThreadPoolExecutor(len(pages) + 1) as pool:
        while (left := seconds - (time.monotonic() - began)) > 0:
            asked = [pool.submit(_sample, page) for page in pages]
            status = _status(url)
            for node in status.nodes:
                if not node.up:
                    silent.add(node.id)
                elif node.id != status.asked:
                    followers.add(node.id)
                    lagging[node.id] += bool(node.lagging)
            looks += 1
            budgets.append(max(_budget(Figures(_page(f"{page}/metrics"))) for page in pages))
            time.sleep(min(_LOOK_SECONDS, max(left, 0)))
            for shard, found in zip(sampled, asked, strict=True):
                shard.append(found.result())
    after = [Figures(_page(f"{page}/metrics")) for page in pages]
    took = time.monotonic() - began
    rows = [_shard(*one) for one in zip(before, after, sampled, strict=True)]
    behind = {node: seen / looks for node, seen in lagging.items() if seen}
    used = sum(budgets) / max(len(budgets) - 1, 1)
    return Watch(
        took,
        rows,
        _System.now(folder).since(system, took),
        behind,
        followers - silent,
        silent,
        used,
    )


def _shard(before: Figures, after: Figures, sampled: Sequence[dict[str, float]]) -> Shard:
    told = [one for one in sampled if one]
    works, waits = (sum(one.pop(name) for one in told) for name in ("works", "waits"))
    stages: Counter[str] = Counter()
    for one in told:
        stages.update({stage: int(seen) for stage, seen in one.items()})
    count = max(len(told), 1)
    return Shard(before, after, works / count, waits / count, stages)


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_PAGE_SECONDS) as page:
            text: str = page.read().decode()
            return text
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise NotWatched(
            f"{url} does not answer ({reason}): start the node with --metrics HOST:PORT, and give "
            "the same to weir doctor --live --metrics HOST:PORT"
        ) from None


def _sample(page: str) -> dict[str, float]:
    """Return the parts of the time that a shard's loop `works` and `waits` for a processor, and how
    often it was seen in each stage; nothing if somebody else asks for that.
    """
    try:
        with urllib.request.urlopen(f"{page}/stages", timeout=_PAGE_SECONDS) as answer:
            rows = answer.read().decode().splitlines()
    except urllib.error.HTTPError:
        return {}
    except OSError as error:
        raise NotWatched(f"{page}/stages does not answer: {error}") from None
    return {name: float(value) for name, _, value in (row.partition(" ") for row in rows)}


def _budget(figures: Figures) -> float:
    limit = figures.total("weir_budget_limit_bytes")
    return figures.total("weir_budget_used_bytes") / limit if limit else 0.0


def _status(url: str) -> SetStatus:
    """Return how the nodes are, and how many replicas of each those who lead them find behind."""
    from weir.cli.connection import connected

    async def ask(client: Client) -> SetStatus:
        return await client.nodes.status()

    return connected(url, ask)


class _System(msgspec.Struct, frozen=True):
    """Counters of the machine at one moment, as /proc and /sys tell them; 0 where they do not."""

    busy: float
    ticks: float
    disk_ms: float
    queue_ms: float
    sent: float
    segments: float
    again: float
    link: float

    @classmethod
    def now(cls, folder: Path) -> _System:
        """Read them; the disk is the one that `folder` lies on."""
        fields = [float(one) for one in _words("/proc/stat")[1:9]] or [0.0] * 8
        idle = fields[3] + fields[4]
        device = folder.stat().st_dev
        disk = _words(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        sent, link = _interfaces()
        segments, again = _segments()
        disk_ms, queue_ms = (float(disk[9]), float(disk[10])) if len(disk) > 10 else (0.0, 0.0)
        return cls(sum(fields) - idle, sum(fields), disk_ms, queue_ms, sent, segments, again, link)

    def since(self, before: _System, seconds: float) -> Machine:
        """Return what happened between two moments."""
        ticks, segments = self.ticks - before.ticks, self.segments - before.segments
        return Machine(
            (self.busy - before.busy) / ticks if ticks else 0.0,
            (self.disk_ms - before.disk_ms) / 1_000 / seconds,
            (self.queue_ms - before.queue_ms) / 1_000 / seconds,
            (self.sent - before.sent) / seconds,
            self.link,
            (self.again - before.again) / segments if segments else 0.0,
        )


def _words(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return []


def _interfaces() -> tuple[float, float]:
    """Return the bytes that all interfaces but loopback sent, and bytes/s of the fastest."""
    sent = link = 0.0
    for path in Path("/sys/class/net").glob("*"):
        if path.name == "lo":
            continue
        sent += float((_words(f"{path}/statistics/tx_bytes") or ["0"])[0])
        megabits = float((_words(f"{path}/speed") or ["0"])[0])
        link = max(link, megabits * 125_000)
    return sent, link


def _segments() -> tuple[float, float]:
    """Return how many TCP segments were sent, and how many of them again."""
    try:
        lines = Path("/proc/net/snmp").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0, 0.0
    names, values = [line.split() for line in lines if line.startswith("Tcp:")]
    found = dict(zip(names[1:], map(float, values[1:]), strict=True))
    return found["OutSegs"], found["RetransSegs"]
