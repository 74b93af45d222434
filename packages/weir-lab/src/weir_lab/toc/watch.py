"""What a world checks in the moment in which it happens; `checkers` looks at the rest later."""

from __future__ import annotations

from collections.abc import Mapping

from weir_lab.toc.network import Link
from weir_toc import packet as wire
from weir_toc.controller.failures import FailureState
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.topology import Topology

#: So long barriers may wait for a process that joins.
_JOIN_INTERVALS = 4
_WITHOUT_BARRIERS, _DATA = {wire.JOIN, wire.FENCED}, {wire.DATA_BE, wire.DATA_R}


class Watch:
    """What links are given, and which barriers processes use."""

    def __init__(self, topology: Topology, rewrites: bool, interval: int) -> None:
        """Data carry barriers if switches rewrite them."""
        self._switches = topology.switches
        self._rewrites = rewrites
        self._longest_path = topology.longest_path
        self._interval = interval
        #: How many processes had joined, and when that changed.
        self._joined, self._joined_at = 0, 0
        #: What each process was told to begin above as it joined.
        self.floors: dict[int, int] = {}
        #: What was broken, each with the number of its invariant.
        self.broken: list[str] = []

    def given(self, now: int, link: Link, data: bytearray) -> None:
        """Check what a link is given: I1 and I2 hold at the moment of sending."""
        opcode = data[22]
        source, to = link.ends
        if opcode != wire.BEACON:
            if opcode == wire.JOINED and to not in self._switches:
                floors = wire.decode_floors(wire.decode(data, now).payload)
                self.floors[to] = max(self.floors.get(to, 0), *floors)
            if opcode in _WITHOUT_BARRIERS or not self._rewrites:
                return
        both = data[6:18]
        is_sent = opcode in _DATA and source not in self._switches
        if both == link.told and not is_sent:
            return  # as those before: most packets are
        found = wire.barriers_of(data, now)
        last = link.barriers if link.told else found
        if found[0] < last[0] or found[1] < last[1]:
            self.broken.append(f"I1 barriers of link {source}->{to} went back: {last}, {found}")
        link.told, link.barriers = both, found
        if not is_sent:
            return
        stamp = wire.unwrap(int.from_bytes(data[0:6], "big"), now)
        if opcode == wire.DATA_BE and stamp < last[0]:
            self.broken.append(f"I1 {source} sent best effort {stamp} below {last[0]}")
        elif opcode == wire.DATA_R and stamp <= last[1]:
            self.broken.append(f"I1 {source} sent reliable {stamp}, not above {last[1]}")

    def used(
        self, process: int, endpoint: Endpoint, due: Mapping[int, int], controller: FailureState
    ) -> None:
        """Bounded and I13: no commit barrier passes a failure before all have settled it.

        `due` are the failures, with their stamps, that the process is told of. A process
        that has failed, too, or is cut off, hears what others do not.
        """
        if endpoint.granted > endpoint.config.reorder_budget:
            self.broken.append(f"Bounded {process} granted more than its budget")
        if not controller.failures or process not in controller.processes:
            return
        commit = endpoint.barriers[1]
        for failure in controller.failures.values():
            for failed, stamp in failure.processes:
                if commit > stamp and due.get(failed) == stamp:
                    self.broken.append(
                        f"I13 {process} used {commit}, and {failed} failed at {stamp}"
                    )

    def lags(self, now: int, endpoints: Mapping[int, Endpoint], delay: int) -> None:
        """I14: barriers follow true time, where clocks show it and nothing fails.

        A hop takes up to `delay` nanoseconds, and half an interval where it has just passed another
        minimum on, or where the step is small. Behind each join minima stand still for a while.
        """
        joined = [one for one, endpoint in endpoints.items() if endpoint.is_admitted]
        if len(joined) > self._joined:
            self._joined, self._joined_at = len(joined), now
        interval = self._interval
        if len(joined) < len(endpoints) or now - self._joined_at < _JOIN_INTERVALS * interval:
            return
        bound = 2 * interval + self._longest_path * (delay + interval // 2)
        for process in joined:
            barrier, commit = endpoints[process].barriers
            # An answer is on its way both ways before what was sent is committed.
            late = max(now - barrier - bound, now - commit - bound - 2 * self._longest_path * delay)
            if late > 0:
                self.broken.append(
                    f"I14 barriers of {process} are {(now - barrier) / interval:.1f} and "
                    f"{(now - commit) / interval:.1f} T behind"
                )
