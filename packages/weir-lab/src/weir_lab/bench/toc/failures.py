"""What processes have written down about failures, judged: each promise on every message.

The promises are those of docs/PACKETS.md, and are called as in `weir sim toc`:

* I4: pairs of stamp and sender rise in each service. I8: what is delivered was sent, to these.
* I9: of what a process that goes on sent to others that all do, nothing reliable is lost.
* I10: of a reliable scattering all receivers that are correct, or were stopped and go on, deliver
  their parts, or none does.
* I11: nothing of a failed process above its failure stamp is delivered, and all at or below is.
* I12: a sender that goes on is told of a failure, or its parts are delivered, never both.
* I13: each process is told once of a failure, at its place: behind all that is at or below its
  stamp, and before all above.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weir_toc.endpoint.events import Service

RELIABLE = Service.RELIABLE.value
#: What `Fenced` says if the controller did not tell what others deliver.
_UNSETTLED = "is lost"
#: A scattering by its service, its stamp and its sender.
Key = tuple[int, int, int]


@dataclass(slots=True)
class Told:
    """A failure as a process was told of it."""

    process: int
    stamp: int
    at: int
    #: How many reliable messages it had been given before.
    place: int


@dataclass(slots=True)
class Got:
    """A message as a process was given it: when it was called and given, and who gets parts."""

    number: int
    called: int
    to: frozenset[int]
    at: int


@dataclass(slots=True)
class Trace:
    """What one process did, as far as it could write it down."""

    name: str
    process: int = 0
    joined: int = 0
    #: Number and receivers of what it sent.
    sent: dict[Key, tuple[int, frozenset[int]]] = field(default_factory=dict)
    lost: set[Key] = field(default_factory=set)
    got: dict[Key, Got] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    #: Stamps of the reliable messages, in the order in which they were given.
    reliable: list[int] = field(default_factory=list)
    is_excluded: bool = False
    #: Whether it was not told what others deliver of what it held.
    is_unsettled: bool = False
    #: Whether it was there to the end: a correct process.
    has_ended: bool = False
    violations: list[str] = field(default_factory=list)
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Take the next line of its log."""
        word, *rest = json.loads(line)
        if word == "joined":
            self.process, self.joined = rest
        elif word == "sent":
            service, stamp, number, to = rest
            self.sent[service, stamp, self.process] = number, frozenset(to)
        elif word == "lost":
            service, stamp, _, _ = rest
            self.lost.add((service, stamp, self.process))
        elif word == "got":
            self._got(*rest)
        elif word == "failed":
            process, stamp, at = rest
            self.told.append(Told(process, stamp, at, len(self.reliable)))
        elif word == "excluded":
            self.is_excluded = True
            self.is_unsettled = _UNSETTLED in rest[-1]
        else:
            self.has_ended = True

    def _got(
        self,
        service: int,
        stamp: int,
        source: int,
        number: int,
        called: int,
        to: list[int],
        at: int,
    ) -> None:
        place = stamp, source
        if place <= self._last.get(service, (-1, -1)):
            last = self._last[service]
            self.violations.append(f"I4 {self.process} was given {place} behind {last}")
        self._last[service] = place
        self.got[service, stamp, source] = Got(number, called, frozenset(to), at)
        if service == RELIABLE:
            self.reliable.append(stamp)

    def recovered_at(self, since: int, failed: Iterable[int] = ()) -> int:
        """Return when it was given a reliable message that was called after `since`, and after it
        was told of all of `failed`; 0 if it was not yet.
        """
        told = [one for one in self.told if one.process in {*failed}]
        if len({one.process for one in told}) < len({*failed}):
            return 0
        since_told = max((one.at for one in told), default=0)
        times = (one.at for _, one in self.reliable_since(since) if one.at >= since_told)
        return min(times, default=0)

    def heard_at(self, called: int, since: int = 0) -> dict[int, int]:
        """Return by sender when it was first given, at `since` or later, a reliable message that
        was called after `called`; the others are left out.
        """
        return {
            source: got.at
            for (_, _, source), got in self.reliable_since(called)  # the last one first
            if got.at >= since
        }

    def reliable_since(self, since: int) -> Iterator[tuple[Key, Got]]:
        """Yield the reliable messages that were called after `since`, the last one first."""
        for key, got in reversed(self.got.items()):
            if got.at < since:
                return
            if key[0] == RELIABLE and got.called >= since:
                yield key, got


def violations(
    traces: Sequence[Trace], deaths: Mapping[int, int], stopped: Collection[int] = ()
) -> list[str]:
    """Return all promises that are broken, in sentences.

    `deaths` says when processes were killed, stopped or cut off, by the clock of the traces. Those
    of them that were `stopped` went on later: they deliver what the correct ones do of what they
    were sent before. All that live must have ended.
    """
    correct = {one.process: one for one in traces if one.has_ended}
    all_of = {one.process: one for one in traces}
    stamps: dict[int, set[int]] = defaultdict(set)
    for trace in traces:
        for told in trace.told:
            stamps[told.process].add(told.stamp)
    found = [one for trace in traces for one in trace.violations]
    for process, several in stamps.items():
        if len(several) > 1:
            found.append(f"I11 {process} failed at {sorted(several)}")
        if process in correct:
            found.append(f"I13 {process} is said to have failed, and it goes on")
    failed = {process: max(several) for process, several in stamps.items()}
    found += _integrity(traces, all_of)
    recovered = {one: all_of[one] for one in stopped}
    found += _recovered(recovered)
    found += _atomic(traces, correct | recovered, failed)
    found += _settled(correct, all_of, failed)
    for trace in correct.values():
        found += _told(trace, deaths)
    return found


def _integrity(traces: Iterable[Trace], all_of: Mapping[int, Trace]) -> Iterator[str]:
    for trace in traces:
        for key, got in trace.got.items():
            sender = all_of.get(key[2])
            sent = sender.sent.get(key) if sender is not None else None
            if trace.process not in got.to:
                yield f"I8 {trace.process} was given {key}, which is for {sorted(got.to)}"
            elif sent is not None and sent != (got.number, got.to):
                yield f"I8 {trace.process} was given {got} at {key}, and {sent} was sent"
            elif sent is None and (sender is None or sender.has_ended):
                yield f"I8 {trace.process} was given {key}, which was never sent"


def _recovered(recovered: Mapping[int, Trace]) -> Iterator[str]:
    for process, trace in recovered.items():
        if not trace.is_excluded:
            yield f"I13 {process} was stopped for long, and was not excluded"
        elif trace.is_unsettled:
            yield f"I10 {process} was stopped, and was not told what others deliver"


def _atomic(
    traces: Iterable[Trace], correct: Mapping[int, Trace], failed: Mapping[int, int]
) -> Iterator[str]:
    """I10, and the first half of I11."""
    receivers: dict[Key, frozenset[int]] = {}
    for trace in traces:
        receivers.update((key, got.to) for key, got in trace.got.items() if key[0] == RELIABLE)
    for key, to in receivers.items():
        due = {one for one in to if one in correct}
        delivered = {one for one in due if key in correct[one].got}
        if delivered and delivered != due:
            yield f"I10 {key} is at {sorted(delivered)}, and not at {sorted(due - delivered)}"
        _, stamp, source = key
        if delivered and stamp > failed.get(source, stamp):
            yield f"I11 {sorted(delivered)} were given {key}: it failed at {failed[source]}"


def _settled(
    correct: Mapping[int, Trace], all_of: Mapping[int, Trace], failed: Mapping[int, int]
) -> Iterator[str]:
    """I9, I12 for senders that go on, and the second half of I11 for those that have failed."""
    for source, trace in all_of.items():
        for key, (_, to) in trace.sent.items():
            if key[0] != RELIABLE:
                continue
            due = {one for one in to if one in correct}
            missing = {one for one in due if key not in correct[one].got}
            is_recalled = key in trace.lost
            if trace.has_ended and is_recalled and due == to:
                yield f"I9 {source} was told that {key} failed, and {sorted(to)} all go on"
            if trace.has_ended and is_recalled and missing != due:
                yield f"I12 {source} was told that {key} failed: {sorted(due - missing)} have it"
            elif trace.has_ended and not is_recalled and missing:
                yield f"I12 {sorted(missing)} were not given {key}, and its sender was not told"
            # A scattering to another process that failed may have been recalled.
            is_kept = not is_recalled and failed.keys().isdisjoint(to - {source})
            if missing and is_kept and key[1] <= failed.get(source, -1):
                yield f"I11 {sorted(missing)} were not given {key}: it failed later"


def _told(trace: Trace, deaths: Mapping[int, int]) -> Iterator[str]:
    """I13: once, and at its place."""
    names = [one.process for one in trace.told]
    for process in {one for one in names if names.count(one) > 1}:
        yield f"I13 {trace.process} was told twice that {process} has failed"
    for process, at in deaths.items():
        if trace.joined < at and process not in names:
            yield f"I13 {trace.process} was not told that {process} has failed"
    for told in trace.told:
        before, behind = trace.reliable[: told.place], trace.reliable[told.place :]
        if any(stamp > told.stamp for stamp in before) or any(
            stamp <= told.stamp for stamp in behind
        ):
            yield f"I13 {trace.process} was told of {told} at another place than its stamp"
