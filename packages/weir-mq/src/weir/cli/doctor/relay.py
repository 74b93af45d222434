"""What `weir doctor --relay` says of a running relay, by its figures: one line per way to fail; and
what `weir doctor` says of all relays of the topology.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir.cli.doctor.bottleneck import Figures
from weir.cli.doctor.finding import Finding, Patient, running
from weir.cli.output import counted

if TYPE_CHECKING:
    from weir.cli.admin.hops import Hop
    from weir.client.client import Client
    from weir.protocol.client.relays import RelayInfo

#: A relay of the topology that was complete longer ago is too far behind.
TREE_LAG_SECONDS = 60.0
_SHOWN_MAX = 5
_PAGE_SECONDS = 5.0
#: A relay hears from its upper node each second. Above this many seconds it lags, or is cut off.
LAG_SECONDS = 10.0
#: A certificate that ends sooner is to be renewed.
WARN_DAYS = 14


def examine_relay(place: str) -> list[Finding]:
    """Look at the relay whose pages are served at HOST:PORT."""
    url = f"http://{place}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_PAGE_SECONDS) as page:
            figures = Figures(page.read().decode())
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        advice = "start the relay with --metrics HOST:PORT, and give the same here"
        return [Finding("relay", "fail", f"{url} does not answer: {reason}", advice)]
    if not figures.rows("weir_relay_core_up"):
        advice = "give the HOST:PORT that a relay was started with as --metrics"
        return [Finding("relay", "fail", f"{url} is not of a relay", advice)]
    found = [_core(figures), _access(figures), _lag(figures), _disk(figures), _gaps(figures)]
    found += [_lineages(figures), _acks(figures)]
    return [*found, *_certificate(figures, time.time())]


def _core(figures: Figures) -> Finding:
    if figures.total("weir_relay_core_up"):
        return Finding("relay-core", "ok", "the core is reached")
    ages = [value for _, value in figures.rows("weir_relay_news_age_seconds")]
    found = f"cut off from the core; the last news came {min(ages, default=0.0):,.0f} s ago"
    advice = (
        "check that the core runs and that its address is right: until then readers get what the "
        "relay has"
    )
    return Finding("relay-core", "fail", found, advice)


def _access(figures: Figures) -> Finding:
    barred = int(figures.total("weir_relay_topics_barred"))
    if not barred:
        return Finding("relay-access", "ok", f"{figures.total('weir_relay_topics'):.0f} topics")
    advice = (
        "its log names the topics and the right that is missing: let its user pull as its set by "
        "weir acl allow ROLE pull set NAME, or without a topology read the topics"
    )
    return Finding("relay-access", "fail", f"the core lets it read {barred} topics not", advice)


def _lag(figures: Figures) -> Finding:
    rows = figures.rows("weir_relay_lag_seconds")
    worst, labels = max(((value, labels) for labels, value in rows), default=(0.0, {}),
                        key=lambda row: row[0])  # fmt: skip
    behind = int(figures.total("weir_relay_lag_messages"))
    if worst <= LAG_SECONDS:
        return Finding("relay-lag", "ok", f"{behind:,} messages behind, {worst:,.1f} s at most")
    size = figures.total("weir_relay_lag_bytes") / 1e6
    found = (
        f"{behind:,} messages behind, about {size:,.1f} MB; {labels.get('topic', '')}/"
        f"{labels.get('partition', '')} was complete {worst:,.0f} s ago"
    )
    advice = "if relay-core is ok, find what is too slow: the link, the disk or the processor"
    return Finding("relay-lag", "warn", found, advice)


def _disk(figures: Figures) -> Finding:
    failing = [labels["kind"] for labels, value in figures.rows("weir_relay_disk_failing") if value]
    if not failing:
        return Finding("relay-disk", "ok", "no write fails")
    paused = "; nothing is pulled until it has room" if "flush" in failing else ""
    advice = "free some space, or repair the disk: the relay then resumes; its log says more"
    return Finding("relay-disk", "fail", f"fails at {', '.join(failing)}{paused}", advice)


def _gaps(figures: Figures) -> Finding:
    rows = [(labels, value) for labels, value in figures.rows("weir_relay_gap_messages") if value]
    if not rows:
        return Finding("relay-gaps", "ok", "no messages were lost in the core")
    named = ", ".join(f"{one.get('topic')}/{one.get('partition')}" for one, _ in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    lost = int(sum(value for _, value in rows))
    advice = (
        "readers of these offsets get an error that names them: start them behind it. If the core "
        "gets the messages back, delete the relay's folder, and it pulls everything again"
    )
    found = f"{lost:,} messages of {named}{more} were lost before the relay had pulled them"
    return Finding("relay-gaps", "warn", found, advice)


def _lineages(figures: Figures) -> Finding:
    later = sum(value > 0 for _, value in figures.rows("weir_relay_lineage"))
    cut = [
        (value, f"{labels.get('topic')}/{labels.get('partition')}")
        for labels, value in figures.rows("weir_relay_cut_messages")
        if value
    ]
    if not cut:
        told = (
            f"{counted(later, 'partition')} in a later lineage"
            if later
            else "all partitions in the first"
        )
        return Finding("relay-lineages", "ok", f"{told}; nothing was cut off since the start")
    total = int(sum(value for value, _ in cut))
    found = (
        f"{total:,} messages of {_first([name for _, name in cut])} were cut off: they are not in "
        "the lineage that began when a core set was promoted"
    )
    advice = (
        "readers may have acted on them: the old home's nodes may still have them (weir inspect, "
        "weir backup). Start readers that ended with OffsetOutOfRange at the offset that it tells"
    )
    return Finding("relay-lineages", "warn", found, advice)


def _acks(figures: Figures) -> Finding:
    pending = int(figures.total("weir_relay_acks_pending"))
    if not pending:
        return Finding("relay-acks", "ok", "no ack of a cluster waits for the core")
    oldest = figures.total("weir_relay_acks_pending_seconds")
    found = f"{pending:,} acks of clusters wait for the core, the oldest for {oldest:,.0f} s"
    advice = (
        "once relay-core is ok, they are done or reported as stale: messages whose leases end "
        "before that are granted again, so keep an inbox"
    )
    return Finding("relay-acks", "warn", found, advice)


def _certificate(figures: Figures, now: float) -> list[Finding]:
    """Return what is to be said of a certificate; nothing of a relay without one."""
    rows = figures.rows("weir_relay_certificate_ends_seconds")
    if not rows:
        return []
    days = int((rows[0][1] - now) // 86_400)
    found = f"ends in {days} days" if days >= 0 else "has ended: clients cannot connect by TLS"
    advice = ""
    if figures.total("weir_relay_tls_files_unused"):
        found += "; newer files are not used"
        advice = "weir cert reload --data FOLDER says what is wrong with them"
    elif days < WARN_DAYS:
        advice = "weir cert renew makes a new one: copy it here, the relay takes it by itself"
    return [Finding("relay-certificate", "warn" if advice else "ok", found, advice)]


def relays(patient: Patient) -> Finding:
    """Ask the relays of the topology of the node that runs on the folder how far they are."""
    from weir.cli.admin.topology import ask_lag
    from weir.cli.connection import connected

    node = running(patient)
    if node is None:
        return Finding("relays", "ok", f"no node runs on {patient.folder}")
    url = node[0]

    async def work(client: Client) -> list[Hop[RelayInfo]]:
        return await ask_lag((await client.topology.describe()).topology, url)

    return judge_relays(connected(url, work))


def judge_relays(hops: Sequence[Hop[RelayInfo]]) -> Finding:
    """Return which relays of the topology do not answer, or are more than a minute behind."""
    silent = [f"{hop.name} ({hop.error})" for hop in hops if hop.found is None]
    if silent:
        return Finding(
            "relays", "warn", f"relays that do not say how far they are: {_first(silent)}",
            "start them (weir relay), or correct their addresses in the topology; what they need "
            "is kept for them within the caps of their sets",
        )  # fmt: skip
    late = [f"{hop.name} by {seconds:,.0f} s"
            for hop in hops if (seconds := _behind(hop.found)) > TREE_LAG_SECONDS]  # fmt: skip
    if late:
        return Finding(
            "relays", "warn", f"relays that lag: {_first(late)}",
            "weir topology show says where the lag begins: look at that relay by weir doctor "
            "--relay, and at its link",
        )  # fmt: skip
    return Finding("relays", "ok", f"{counted(len(hops), 'relay')} of the topology")


def _behind(found: RelayInfo | None) -> float:
    return max((one.lag_ms for one in found.topics), default=0) / 1_000 if found else 0.0


def _first(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_MAX
    return "; ".join(names[:_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")
