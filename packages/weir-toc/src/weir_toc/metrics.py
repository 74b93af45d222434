"""What `weir-toc status` knows, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from weir_toc.controller.lag import Cause
from weir_toc.controller.promises import Reason
from weir_toc.topology import name_of_switch

_Status = Mapping[str, Any]
_Sample = tuple[Mapping[str, str], float]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def metrics_of(
    has_majority: bool, members: Sequence[_Status], leader: _Status | None
) -> Iterator[str]:
    """Yield the lines for what members of the controller answered, as `status --json` shows it.

    `leader` is the one of them that leads. Only it knows its network. Its counts of what it has
    seen begin with 0 when another member leads.
    """
    yield from _family(
        "weir_toc_majority", "gauge", "1 if members of the controller have a leader.",
        [({}, has_majority)],
    )  # fmt: skip
    yield from _of_members(members)
    if leader is not None and leader["network"] is not None:
        yield from _of_network(leader)


def _of_members(members: Sequence[_Status]) -> Iterator[str]:
    at = [({"address": one["address"]}, one) for one in members]
    here = [(labels, one) for labels, one in at if "role" in one]
    yield from _family(
        "weir_toc_member_up", "gauge", "1 if the member of the controller answers.",
        [(labels, "role" in one) for labels, one in at],
    )  # fmt: skip
    yield from _family(
        "weir_toc_member_leads", "gauge", "1 if the member leads.",
        [(labels, one["role"] == "leader") for labels, one in here],
    )  # fmt: skip
    yield from _family(
        "weir_toc_member_term", "gauge", "Raft term of the member; each election raises it.",
        [(labels, one["term"]) for labels, one in here],
    )  # fmt: skip


def _of_network(leader: _Status) -> Iterator[str]:
    processes, switches = leader["processes"], leader["switches"]
    nodes = [*((_labels(one["switch"], name_of_switch(one["switch"])), one) for one in switches),
             *((_labels(one["process"], one["name"]), one) for one in processes)]  # fmt: skip
    lagging, held = leader["lagging"], leader["held"]
    families: tuple[tuple[str, Literal["gauge", "counter"], str, Iterable[_Sample]], ...] = (
        ("processes", "gauge", "Processes that take part.", [({}, len(processes))]),
        ("processes_failed_total", "counter", "Processes that have failed.",
         [({}, leader["failed"])]),
        ("connected", "gauge", "1 if the node is connected to the controller.",
         [(labels, one["connected"]) for labels, one in nodes]),
        ("kernel_drops_total", "counter", "Packets for which the kernel of a node had no room.",
         [(labels, one["kernel_drops"]) for labels, one in nodes]),
        ("dead_links", "gauge", "Cables that are dead in one direction.",
         [({}, len(leader["dead_links"]))]),
        ("lagging_links", "gauge", "Links that lag now.", _by_cause(lagging, Cause)),
        ("link_behind_seconds", "gauge", "How far a link that lags is behind the others.",
         [(_link_of(one), one["behind_ms"] / 1e3) for one in lagging]),
        ("lags_total", "counter", "Links that were reported as lagging.",
         [({}, leader["lagged"])]),
        ("holding_processes", "gauge", "Processes that hold commit barriers back now.",
         _by_cause(held, Reason)),
        ("held_seconds", "gauge", "How far a process holds commit barriers back.",
         [({"process": one["process"], "waits_for": one["waits_for"] or "", "cause": one["cause"]},
           one["behind_ms"] / 1e3) for one in held]),
        ("holds_total", "counter", "Processes that were reported as holding barriers back.",
         [({}, leader["holds"])]),
        ("forwarding_pairs", "gauge", "Pairs for which the controller forwards packets now.",
         [({}, len(leader["forwarding"]))]),
        ("forwarded_total", "counter", "Packets that the controller has passed on.",
         [({}, leader["forwarded"])]),
        ("failures_unsettled", "gauge", "Failures that reliable messages wait for.",
         [({}, len(leader["unsettled"]) + leader["undecided"])]),
        ("registers_to_remove", "gauge", "Registers of failed inputs that stand yet.",
         [({}, leader["to_remove"])]),
    )  # fmt: skip
    for name, kind, about, samples in families:
        yield from _family(f"weir_toc_{name}", kind, about, samples)


def _labels(node: int, name: str) -> dict[str, str]:
    # A process may have the name of a switch, or none.
    return {"node": name, "id": str(node)}


def _by_cause(found: Sequence[_Status], causes: type[Cause] | type[Reason]) -> list[_Sample]:
    counts = Counter(one["cause"] for one in found)
    return [({"cause": one.value}, counts[one.value]) for one in causes]


def _link_of(one: _Status) -> dict[str, str]:
    (source, to), (hop_source, hop_to) = one["link"], one["hop"]
    return {"source": source, "to": to, "hop_source": hop_source, "hop_to": hop_to,
            "cause": one["cause"]}  # fmt: skip


def _family(
    name: str, kind: Literal["gauge", "counter"], about: str, samples: Iterable[_Sample]
) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    # Whoever collects this refuses all of it if labels are there twice.
    values = {",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items()): value
              for labels, value in samples}  # fmt: skip
    for pairs, value in values.items():
        yield f"{name}{{{pairs}}} {value:.15g}" if pairs else f"{name} {value:.15g}"
