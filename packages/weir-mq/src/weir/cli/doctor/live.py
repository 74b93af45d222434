"""`weir doctor --live`: watches a loaded node and tells what limits it."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.doctor.bottleneck import Figures, Machine, Shard, Watch
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir.client.admin.nodes import SetStatus
    from weir.client.client import Client

_PAGE_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_SECTOR = 512


class NotWatched(WeirError):
    """The node cannot be watched; the message says what is missing."""


def watch(folder: Path, metrics: str, seconds: float, url: str) -> Watch:
    """Look at the node in `folder` for `seconds`; its figures are at `metrics`, one port a shard.

    Raises `NotWatched`.
    """
    from weir.cli.connection import connected
    from weir.server.config.sections import split_address

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


@dataclass(frozen=True, slots=True)
class _System:
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
