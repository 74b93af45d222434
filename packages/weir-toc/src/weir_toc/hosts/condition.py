"""How a network is: its status, and what the readings of its nodes report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic_ns

from weir_toc.congestion import mbit_of
from weir_toc.controller.codec import held_to, lagging_to, promise_from, reading_from
from weir_toc.controller.lag import Lagging
from weir_toc.controller.pacing import Pacing
from weir_toc.controller.paths import forwarding_of
from weir_toc.controller.promises import Held
from weir_toc.controller.state import ControllerState
from weir_toc.hosts.frames import Frame, number_in
from weir_toc.hosts.sessions import Session
from weir_toc.topology import name_of_switch


def readings_in(
    node: int, frame: Frame, at: int, state: ControllerState, pacing: Pacing
) -> list[Lagging | Held]:
    """Take what a node told at `at` of its links and its promise; return what is reported.

    Raises ControlError for what is no reading.
    """
    failures = state.failures
    reading = reading_from(node, at, frame)
    if failures is None or not failures.has(node):
        return []
    # Only nodes of this network are kept and shown, whatever a node says that it has heard.
    links = {id: one for id, one in reading.links.items() if failures.has(id)}
    alarms = pacing.alarms(failures.topology)
    found: list[Lagging | Held] = []
    if node in failures.processes and "commit" in frame:
        pacing.away.told(monotonic_ns(), node, number_in(frame, "commit"))
    found += alarms.lag.read(replace(reading, links=links))
    if node in failures.processes and "promise" in frame:
        promise = promise_from(frame["promise"])
        if not failures.has(promise.process):
            promise = promise._replace(process=0)
        found += alarms.promises.read(node, at, promise)
    return found


def names_by_id(state: ControllerState) -> dict[int, str]:
    """Return the names of all processes that have one."""
    return {one.process: name for name, one in state.names.items()}


def status_of(
    state: ControllerState, sessions: Mapping[int, Session] | None, pacing: Pacing | None
) -> Frame:
    """Return the status of a network, "network" being None before it is founded.

    `sessions` are the connections of nodes. Only a leader has them, and `pacing`: the status of
    another member does not say who is connected, lags, or is cut off, and what kernels dropped.
    """
    network, failures = state.network, state.failures
    if network is None or failures is None:
        return {"network": None}
    names = names_by_id(state)
    alarms = pacing.alarms(failures.topology) if pacing is not None else None

    def seen(node: int) -> Frame:
        if sessions is None:
            return {}
        session = sessions.get(node)
        drops = session.kernel_drops if session is not None else 0
        return {"connected": session is not None, "kernel_drops": drops}

    return {
        "network": {"racks": network.racks, "spines": network.spines, "cores": network.cores,
                    "interval_ns": network.interval, "place": network.place,
                    "drain_mbit": round(mbit_of(network.drain_rate), 3),
                    "mark_bytes": network.mark_above},
        "switches": [{"switch": id, "host": at.host, "port": at.port,
                      **seen(id)} for id, at in state.switches.items()],
        "processes": [{"process": one, "name": names.get(one, ""), **seen(one)}
                      for one in sorted(failures.processes)],
        "failed": len(failures.failed),
        "dead_links": sorted([name_of_switch(one) for one in link]
                             for link in failures.dead_links()),
        "lagging": [lagging_to(one, names)
                    for one in alarms.lag.lagging.values()] if alarms else [],
        "lagged": alarms.lag.reported if alarms else 0,
        "held": [held_to(one, names) for one in alarms.promises.held] if alarms else [],
        "holds": alarms.promises.reported if alarms else 0,
        **forwarding_of(pacing.paths if pacing is not None else None, names),
        "undecided": failures.is_undecided,
        "unsettled": [{"failure": one.number, "processes": [list(p) for p in one.processes],
                       "waiting": sorted(one.waiting)} for one in failures.failures.values()],
        "to_remove": len(state.removals),
    }  # fmt: skip
