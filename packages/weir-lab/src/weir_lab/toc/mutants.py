"""Rules of the transport that can be taken away, each with a seed whose world then breaks.

weir sim toc --planted
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weir_lab.sim.mutants.planting import Patch
from weir_lab.toc.scenario import Outcome, play

_AWAY = "weir_toc.controller.away"
_TERMS = "weir_toc.controller.terms"
_FLOW = "weir_toc.endpoint.flow"
_CLOCK = "weir_toc.clock"
_ENDPOINT = "weir_toc.endpoint.endpoint"
_NODE = "weir_toc.node"
_OUTBOX = "weir_toc.endpoint.outbox"
_PACKET = "weir_toc.packet"
_PATHS = "weir_toc.controller.paths"
_RECEIVING = "weir_toc.endpoint.receiving"
_REGISTERS = "weir_toc.registers"
_SENDING = "weir_toc.endpoint.sending"
_STREAMS = "weir_toc.endpoint.streams"
_FAILURES = "weir_toc.controller.failures"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: a piece of a module's text, what stands there instead, and a seed that shows it.

    `breaks` are the numbers of the invariants of which at least one must break.
    """

    name: str
    module: str
    old: str
    new: str
    seed: int
    breaks: tuple[str, ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Take the rule away, and bring it back."""
        patch = Patch()
        try:
            patch.source(self.module, self.old, self.new)
            yield
        finally:
            patch.undo()

    def is_caught(self, seed: int, play_seed: Callable[[int], Outcome] = play) -> bool:
        """Whether a world of this seed breaks as it should when the rule is gone."""
        with self.planted():
            try:
                found = play_seed(seed).violations
            except Exception:
                return True  # code that fails where it should not is seen by everybody
        return any(one.startswith(self.breaks) for one in found)


MUTANTS = (
    Mutant("messages above the barrier are dropped, as the paper prints it", _RECEIVING,
           "packet.stamp < self.barrier:", "packet.stamp > self.barrier:", 3, ("I9",)),
    Mutant("a stamp may equal a commit barrier that was sent", _CLOCK,
           "self.commit_sent + 1", "self.commit_sent", 17, ("I1", "I4", "I7")),
    Mutant("best effort is delivered at the barrier, too", _RECEIVING,
           "Service.BEST_EFFORT, barrier - 1", "Service.BEST_EFFORT, barrier", 1, ("I3", "I4")),
    Mutant("a scattering is stamped as it is called", _SENDING,
           "scattering.stamp = self._outbox.stamps.stamp(now)",
           "scattering.stamp = scattering.queued_at", 0, ("I1", "I4", "I7")),
    Mutant("two stamps of a process may be the same", _CLOCK,
           "max(self.last + 1, self.commit_sent + 1,", "max(self.last,", 0, ("I1", "I4", "I8")),
    Mutant("the commit barrier passes what is not acknowledged", _CLOCK,
           "found = max(self.last, now) if oldest is None else oldest - 1",
           "found = max(self.last, now)", 0, ("I1", "I9")),
    Mutant("a barrier goes back when a process joins", _REGISTERS,
           "if barrier > self.barrier:", "if barrier != self.barrier:", 2, ("I1",)),
    Mutant("a process that joins is not told where to go on", _NODE,
           "wire.encode_floors(self.up.barrier, self.up.commit)",
           "wire.encode_floors(now - START_NS, now - START_NS)", 48, ("I1", "I4", "I9")),
    Mutant("the minimum leaves out the input that lags", _REGISTERS,
           "one.barrier < barrier:", "barrier == _ABOVE_ALL or one.barrier > barrier:",
           1, ("I9", "I4")),
    Mutant("packets carry the barrier of the wrong half", _NODE,
           "wire.rewrite(data, half.barrier, half.commit)",
           "wire.rewrite(data, self.up.barrier, self.up.commit)", 1, ("I1", "I9", "I4")),
    Mutant("a late message is taken", _RECEIVING,
           "not is_reliable and packet.stamp < self.barrier", "False", 10, ("I4", "I3")),
    Mutant("a damaged packet is taken", _PACKET,
           "if due != found:", "if False:", 0,
           ("I8", "I1", "I4", "I9", "I12")),
    Mutant("a message is delivered without its last fragments", _STREAMS,
           "len(self.fragments) == self.last - self.first + 1", "True", 2, ("I8", "I9")),
    Mutant("nothing is sent again", _SENDING,
           "            if flow.retry_at <= now:\n",
           "            continue\n            if flow.retry_at <= now:\n", 6, ("I9", "I16")),
    Mutant("nothing is forwarded where a path is cut", _SENDING,
           "if flow.path.watch(now, owed, patience):", "if False:", 32,
           ("I9",)),
    Mutant("what the controller was given counts as received", _SENDING,
           "            flow.path.forwarded_at = now\n",
           "            flow.path.forwarded_at = now\n"
           "            for psn, one in owed:\n"
           "                if flow.sent[Service.RELIABLE].pop(psn, None):\n"
           "                    self._packet_acknowledged(flow, one)\n", 41, ("I1", "I9", "I10")),
    Mutant("who does not answer what is forwarded goes on", _PATHS, "found.add(to)", "pass", 191,
           ("I9", "I14")),
    Mutant("credits are granted out of turn", _SENDING,
           "flow.queue.append((scattering, part))",
           "flow.queue.insert(0 if part.to & 1 else len(flow.queue), (scattering, part))", 1,
           ("I16",)),
    Mutant("a sender that joins gets a window before others have given theirs up", _RECEIVING,
           "free = budget - self.granted", "free = budget", 0, ("Bounded",)),
    Mutant("stamps are compared without unwrapping", _PACKET,
           "away = _HALF - near  # as `unwrap` does\n    return _packet",
           "away = 0\n    return _packet", 1,
           ("I9", "I1", "I4", "I8", "I16")),
    Mutant("barriers are compared without unwrapping", _PACKET,
           "away = _HALF - near  # as `unwrap` does, without two calls",
           "away = 0  # as `unwrap` does, without two calls", 1,
           ("I1", "I9", "I14", "I16")),
    Mutant("numbers of packets are compared without unwrapping", _PACKET,
           "return near + ((low - near + _PSN_HALF) & _PSN_LOW) - _PSN_HALF", "return low", 1,
           ("I9", "I4", "I16")),
    Mutant("an ACK tells of all that ever came", _STREAMS,
           "least = self.top - span", "least = 0", 1, ("I9",)),
    Mutant("a best effort packet without an ACK is forgotten", _SENDING,
           "self._give_up(one.scattering, one.part, Reason.LOST)",
           "one.scattering.unacked -= 1", 2, ("I9",)),
    Mutant("best effort sends nothing to the living beside a dead process", _FLOW,
           "if self.service is Service.RELIABLE or not rest:", "if True:", 0, ("I9",)),
    Mutant("what has lost the last receiver it waited for never leaves", _SENDING,
           "            self._ready.append(scattering)\n", "            pass\n", 0, ("I9", "I16")),
    Mutant("registers are removed before all have settled", _FAILURES,
           "            if failure.waiting:\n", "            if False:\n", 16,
           ("I10", "I11", "I12", "I13")),
    Mutant("a silent input leaves the commit minimum, too", _REGISTERS,
           "if not one.removed and one.commit", "if one.live and one.commit", 4,
           ("I10", "I11", "I12", "I13", "I9")),
    Mutant("who comes back discards all that it holds", _RECEIVING,
           "        self._deliver(Service.RELIABLE, self.commit)\n\n    # --",
           "        waiting.clear()\n\n    # --", 8, ("I9", "I10", "I11")),
    Mutant("who comes back delivers what was recalled", _RECEIVING,
           "for sender, low, high in decisions.recalled:", "for sender, low, high in ():", 126,
           ("I12",)),
    Mutant("who comes back delivers of its own what others do not", _RECEIVING,
           "waiting[:] = [one for one in waiting if one[1] != process or one[0] <= last]\n",
           "pass\n", 81, ("I10", "I11")),
    Mutant("only the newest failure is told of what is recalled", _SENDING,
           "untold = [part.to for part in scattering.parts if part.to in self._failed]",
           "untold = [process]", 767, ("I12",)),
    Mutant("a recall that a failed process did not answer is told to nobody", _SENDING,
           "self._notes.add(process, scattering, [process])",
           "self._notes.add(process, scattering, [])", 287, ("I12",)),
    Mutant("a cable is taken out while processes are not told of an earlier failure", _FAILURES,
           "if failure.waiting:\n                break",
           "if failure.waiting:\n                continue", 1065, ("I13",)),
    Mutant("a process that has just joined fails where its register began", _NODE,
           "one.commit = max(one.commit, half.commit)", "pass", 3127, ("I13",)),
    Mutant("a port that breaks again is frozen in its former epoch", _NODE,
           "one.frozen, one.frozen_epoch = True, one.epoch",
           "one.frozen_epoch = one.frozen_epoch if one.frozen else one.epoch\n"
           "        one.frozen = True", 377, ("I14",)),
    Mutant("an aborted scattering is not recalled", _SENDING,
           "self._recalls.add(now, scattering, part.to)", "pass", 8, ("I12",)),
    Mutant("what a failed process sent above its stamp is kept", _RECEIVING,
           "if one[1] != process or one[0] <= stamp]", "if True]", 21, ("I10", "I11", "I13")),
    Mutant("a failure is told of before its place in the order", _RECEIVING,
           "insort(waiting, (stamp, _BEHIND_ALL + process, 0,",
           "insort(waiting, (0, _BEHIND_ALL + process, 0,", 39, ("I13",)),
    Mutant("all packets of a run carry what only its last one may promise", _NODE,
           "        if half.raise_to(one, *wire.barriers_of(last, now), now):\n"
           "            self._pass_on(now, half)\n"
           "        if output is None:\n",
           "        if half.raise_to(one, *wire.barriers_of(last, now), now):\n"
           "            self._pass_on(now, half)\n"
           "        if output is not None:\n"
           "            wire.rewrite_run(data, size, output.half.barrier, output.half.commit)\n"
           "        if output is None:\n", 608, ("I9",)),
    Mutant("the commit barrier of a run passes what is not acknowledged", _OUTBOX,
           "commit = stamps.commit(now, next(iter(self.open), None))\n"
           "        head", "commit = stamps.commit(now, None)\n        head", 1, ("I1", "I9")),
    Mutant("a piece with packets of several flows is taken for a run", _PACKET,
           "for at in range(22, 36))", "for at in range(22, 24))", 15, ("I9", "I4")),
    Mutant("a run with a damaged packet is taken", _PACKET,
           "if (*map(crc32c, covered),) != sums:", "if False:", 81, ("I8",)),
    Mutant("a run with a hole is taken as if it had none", _PACKET,
           " or not _holds(data, size, 18, _numbered(psn, count), 4):", ":", 2, ("I4", "I9")),
    Mutant("a batch that is acknowledged in part counts as received", _FLOW,
           "touched.append(one)", "whole.append(psn)", 1, ("I9", "I12", "I16")),
    Mutant("a batch that is taken apart is open behind later ones", _SENDING,
           "pending.clear()", "items = [*items[1:], items[0]]\n        pending.clear()", 1,
           ("I1", "I9")),
    Mutant("barriers of data count where only beacons carry them", _ENDPOINT,
           "carries = packet.opcode == wire.BEACON or self.config.barriers_in_data",
           "carries = True", 0, ("I1", "I3", "I4", "I9")),
    Mutant("a run promises something where only beacons do", _ENDPOINT,
           "        if self.config.barriers_in_data:\n"
           "            self._advance(run.barrier, run.commit)",
           "        self._advance(run.barrier, run.commit)", 3, ("I1", "I3", "I4", "I9")),
    Mutant("a switch takes barriers of data that nobody rewrites", _NODE,
           "if opcode == wire.BEACON or self.config.rewrites:", "if True:", 7,
           ("I1", "I3", "I4", "I9")),
    Mutant("a repeated run is taken", _RECEIVING,
           "max(stream.newest, self.commit if is_reliable else self.barrier - 1)\n"
           "        if psn < top or run", "self.commit if is_reliable else self.barrier - 1\n"
           "        if run", 9, ("I4",)),
    Mutant("a register that is frozen follows what comes", _REGISTERS,
           "if commit > one.commit and not one.frozen:", "if commit > one.commit:", 78,
           ("I10", "I11", "I12", "I13")),
    Mutant("a process fails at the least register that it stands behind", _FAILURES,
           "        return max(\n            (\n                self._silent[switch",
           "        return min(\n            (\n                self._silent[switch",
           433, ("I10", "I11", "I13")),
    Mutant("a process whose clock stops stops all others", _NODE,
           "is_lost = one.heard_at < silent_since or self._stands(now, neighbour, one)",
           "is_lost = one.heard_at < silent_since", 191, ("I14",)),
    Mutant("a process asks to join but once", _ENDPOINT,
           "                self.deadline = now + interval\n            return",
           "                self.deadline = now + (1 << 50)\n            return", 10, ("I14",)),
    Mutant("a process promises more than its clock shows", _CLOCK,
           "due = now if now > self.last else self.last",
           "due = max(self.last, now + 2_000_000)", 0, ("I7",)),
    Mutant("a run of another sender waits at the end of the order", _RECEIVING,
           "place = bisect_left(waiting, run[0])", "place = len(waiting)", 2, ("I4",)),
    Mutant("a lost message gives its credits back while parts of it are in memory", _FLOW,
           "if is_lost and part.holds_credit:", "if False:", 835191171, ("I6",)),
    Mutant("a confirmation that does not arrive is owed nothing", _SENDING,
           "flow.confirmation = Confirmation.SENT", "flow.confirmation = Confirmation.NONE",
           700938, ("I9",)),
    Mutant("who answers no more is waited for, as it has granted a window", _FLOW,
           "patience = limit if self.window else", "patience = 1 << 62 if self.window else", 89745,
           ("I9", "I16")),
    Mutant("what has come counts as released", _SENDING,
           "flow.released(service, ack.released)",
           "flow.released(service, max([sum(one) for one in ack.ranges], default=ack.released))",
           5, ("I6",)),
    Mutant("registers are removed while one process has not settled", _FAILURES,
           "            if failure.waiting:\n                break",
           "            if len(failure.waiting) > 1:\n                break", 16, ("I13",)),
    Mutant("a failure does not wait for all that go on", _FAILURES,
           "failure.waiting |= self.processes",
           "failure.waiting |= {*sorted(self.processes)[1:]}", 16, ("I13",)),
    Mutant("a minimum that moved waits for the next beacon", _NODE,
           "        self._moved = True\n        if half is self.up:",
           "        self._moved = False\n        if half is self.up:", 23, ("I14",)),
    Mutant("a command of a leader that was replaced is obeyed", _TERMS,
           "return term >= self.highest", "return True", 89, ("Routes",)),
    Mutant("who is not connected and holds the barriers of all goes on", _AWAY,
           "return sorted(due)", "return []", 1005657, ("I9", "I14")),
    Mutant("who is not connected and is asked for memory goes on", _AWAY,
           "self._asked[process] = since, now", "pass", 509934, ("I9",)),
    Mutant("what has not left keeps its credits above a smaller window", _SENDING,
           "flow.take_back(_queued(self.flows.values(), flow.to))", "pass", 6966, ("I9", "I16")),
    Mutant("all is decided that one rack has passed", _AWAY,
           "return min(racks.values(), default=0)", "return max(racks.values(), default=0)", 67501,
           ("I10", "I11")),
)  # fmt: skip


def hunt(mutant: Mutant, seeds: int) -> int | None:
    """Return the first seed below `seeds` that shows a mutant, the one that is kept first."""
    return next((seed for seed in (mutant.seed, *range(seeds)) if mutant.is_caught(seed)), None)
