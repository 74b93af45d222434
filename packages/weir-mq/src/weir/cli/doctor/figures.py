"""Checks that read the pages of a running node: what they say needs no login, or no client.

A node serves its pages where `metrics.listen` says, each shard on a port of its own.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator

from weir.cli.doctor.finding import Finding, Patient, running
from weir.cli.output import counted

_SECONDS = 5.0
_DAMAGE = re.compile(r"^weir_scrub_damage\{[^}]*\} (\d+)$", re.MULTILINE)
#: What `/readyz` of a shard says that has no news of the metadata.
_STALE = "no news of the metadata"


def asked_for_damage(patient: Patient, advice: str) -> Finding:
    """Sum up what the shards' figures say, as far as they are served where the settings say."""
    if not _are_served(patient):
        return Finding("damage", "ok", "not looked for: a node runs here, and its figures are not "
                       "served where these settings say (weir_scrub_damage)")  # fmt: skip
    bad, url = 0, ""
    try:
        for url in _urls(patient, "metrics"):
            with urllib.request.urlopen(url, timeout=_SECONDS) as page:
                text = page.read().decode()
            bad += sum(map(int, _DAMAGE.findall(text)))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Finding("damage", "ok", "not checked: the set is closed, and its figures need "
                           "a user who may list system (weir_scrub_damage)")  # fmt: skip
        return Finding("damage", "warn", f"{url}: {error.reason}", "see the log of the node")
    except OSError as error:
        return Finding("damage", "warn", f"{url}: {getattr(error, 'reason', error)}",
                       "see why the figures are not served: they tell of damage")  # fmt: skip
    if bad:
        places = "place" if bad == 1 else "places"
        return Finding("damage", "fail", f"{bad} damaged {places}, by the node's figures", advice)
    return Finding("damage", "ok", "none, by the node's figures")


def news(patient: Patient) -> Finding:
    """Look which shards of a running node have had no news of the metadata for too long: those let
    nobody in and begin nothing, unless the set is open. Everybody may ask that.
    """
    if running(patient) is None or not _are_served(patient):
        return Finding("news", "ok", "not looked for: no node runs here, or its pages are not "
                       "served where these settings say (metrics.listen)")  # fmt: skip
    stale, said = [], ""
    for shard, url in enumerate(_urls(patient, "readyz")):
        try:
            urllib.request.urlopen(url, timeout=_SECONDS).close()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace").strip()
            if _STALE in text:
                stale.append(shard)
                said = text
        except OSError as error:
            return Finding("news", "warn", f"{url}: {getattr(error, 'reason', error)}",
                           "see why the pages are not served")  # fmt: skip
    if stale:
        shards = ", ".join(map(str, stale))
        return Finding(
            "news", "fail", f"shards {shards}: {said}",
            "weir node status, asked of another node, tells whether the metadata has a leader and "
            "which nodes are linked: mend the network between them, or start the others. Until "
            "then connect to nodes that have news; access.stale_seconds says how long they wait",
        )  # fmt: skip
    return Finding("news", "ok", f"{counted(patient.shards, 'shard')} with news of the metadata")


def _are_served(patient: Patient) -> bool:
    listen = patient.config.metrics.listen
    return bool(listen) and not listen.endswith(":0")


def _urls(patient: Patient, page: str) -> Iterator[str]:
    """Yield the address of a page of each shard."""
    from weir.server.config import split_address

    host, port = split_address(patient.config.metrics.listen)
    host = f"[{host}]" if ":" in host else host
    for shard in range(patient.shards):
        yield f"http://{host}:{port + shard}/{page}"
