"""The invariants of docs/PACKETS.md, checked on what a world did; numbers are those of the issue.

Each function returns sentences about what is broken. `Watch` has looked at what must hold in the
moment in which it happens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from weir_lab.toc.rest import lag_max
from weir_lab.toc.world import Host, Sending, T, World
from weir_toc.endpoint.events import Reason, Service

BE, R = Service.BEST_EFFORT, Service.RELIABLE


def violations(world: World) -> list[str]:
    """Return all that is broken in a world whose network was quiet in the end."""
    found = [*world.watch.broken]
    for process, host in world.hosts.items():
        found += gates(process, host)
        found += rising(process, host)
        found += causal(process, host, world.watch.floors.get(process, 0))
        found += bounded(process, host)
    found += integrity(world)
    found += settled(world)
    found += told(world)
    found += live(world)
    found += routed(world)
    return found


def gates(process: int, host: Host) -> Iterator[str]:
    """I3: best effort below the barrier, reliable at or below the commit barrier."""
    for one in host.deliveries:
        message, (barrier, commit) = one.message, one.barriers
        if message.service is BE and message.stamp >= barrier:
            yield f"I3 {process} delivered {message.stamp}, and its barrier is {barrier}"
        if message.service is R and message.stamp > commit:
            yield f"I3 {process} delivered {message.stamp} above commit barrier {commit}"


def rising(process: int, host: Host) -> Iterator[str]:
    """I4, and with I6 so I5: pairs of stamp and sender strictly increase in each service."""
    for service in Service:
        last = (-1, -1)
        for one in host.deliveries:
            if one.message.service is service:
                key = (one.message.stamp, one.message.source)
                if key <= last:
                    yield f"I4 {process} delivered {key} behind {last} by {service.name}"
                last = key


def causal(process: int, host: Host, floor: int) -> Iterator[str]:
    """I7: a process stamps above all that it has delivered, and delivers nothing above its clock.

    It may do that up to `floor`, where it was told to begin as it joined, and up to its own last
    stamp: one lies above the last one, also where the clock shows the same.
    """
    stamps = [0, *(host.sendings[ticket].stamp for ticket in host.left)]
    for each in host.deliveries:
        shown = max(each.now, floor, stamps[each.left_before])
        if each.now and each.message.stamp > shown:
            yield f"I7 {process} delivered {each.message.stamp}, and its clock showed {each.now}"
    highest = 0
    deliveries = iter(host.deliveries)
    one = next(deliveries, None)
    for position, ticket in enumerate(host.left):
        while one is not None and one.left_before <= position:
            highest = max(highest, one.message.stamp)
            one = next(deliveries, None)
        stamp = host.sendings[ticket].stamp
        if stamp <= highest:
            yield f"I7 {process} stamped {stamp} after it had delivered {highest}"


def bounded(process: int, host: Host) -> Iterator[str]:
    """What waits for its turn fits in the budget. The world looks at the windows at each step."""
    budget = host.endpoint.config.reorder_budget
    if host.endpoint.counters.buffered_max > budget:
        yield f"Bounded {process} buffered {host.endpoint.counters.buffered_max} of {budget}"


def integrity(world: World) -> Iterator[str]:
    """I6 and I8: what is delivered was sent, with that stamp, whole, to this process, once.

    No part came before it had its window, where none was overtaken or repeated on its way.
    """
    faults = world.shape.faults
    if not faults.reordering and not faults.duplication:
        for process, host in world.hosts.items():
            if count := host.endpoint.counters.over_budget:
                yield f"I6 {process} was sent {count} packets for which it had granted no window"
    sent = {
        (sending.service, sending.source, sending.stamp): sending
        for host in world.hosts.values()
        for sending in host.sendings.values()
        if sending.stamp
    }
    for process, host in world.hosts.items():
        for one in host.deliveries:
            message = one.message
            sending = sent.get((message.service, message.source, message.stamp))
            if sending is None:
                yield f"I8 {process} delivered {message.stamp}, which was never sent"
            elif (process, message.payload) not in sending.parts:
                yield f"I8 {process} delivered another payload at {message.stamp}"


def settled(world: World) -> Iterator[str]:
    """I9, I10 and I12: what became of each part of each scattering."""
    got: dict[tuple[Service, int, int], set[int]] = defaultdict(set)
    for process, host in world.hosts.items():
        for one in host.deliveries:
            message = one.message
            got[message.service, message.source, message.stamp].add(process)
    for source, host in world.hosts.items():
        for sending in host.sendings.values():
            receivers = got[sending.service, source, sending.stamp] if sending.stamp else set()
            if source in world.correct:
                yield from _settled(world, source, sending, receivers)
            elif sending.service is R and sending.stamp:
                yield from _cut_off(world, source, sending, receivers)


def _settled(world: World, source: int, sending: Sending, receivers: set[int]) -> Iterator[str]:
    named = {to for to, _ in sending.parts}
    failed = {one.to for one in sending.failed}
    now = world.network.now
    # Budgets hold a window for each process. A clock that is set far ahead ends waits by itself.
    is_ahead = world.hosts[source].now(now) > now + 100 * T
    for one in sending.failed:
        is_given_up = one.reason is Reason.NO_MEMORY or (
            one.reason is Reason.UNREACHABLE and _is_reachable(world, source, one.to)
        )
        if is_given_up and one.to in world.correct and not is_ahead:
            yield f"I9 {source} gave up {one.to}, which goes on"
    if sending.service is R:
        missing = (named - receivers) & world.judged
        if failed and (delivered := receivers & world.judged):
            yield f"I12 {source} was told that {sending.stamp} failed: {delivered} delivered it"
        if not failed and missing:
            yield f"I9 {source} sent {sending.stamp}, and {missing} did not deliver it"
        if len(sending.failed) > 1:
            yield f"I12 {source} was told {len(sending.failed)} times that {sending.stamp} failed"
    else:
        if lost := (named - receivers - failed) & world.correct.keys():
            yield f"I9 {source} was not told that {lost} missed {sending.stamp}"
        if world.shape.is_calm and failed:
            yield f"I9 best effort {sending.stamp} of {source} failed at {failed}, without a fault"


def _is_reachable(world: World, source: int, to: int) -> bool:
    """Whether a sender can ask a receiver and get its answer: by the network, or by the controller.

    A sender that has neither goes on, as long as no commit barrier waits for what it has sent.
    """
    is_cut = not {(source, to), (to, source)}.isdisjoint(world.network.severed)
    return not is_cut or source not in world.control.unreached


def _cut_off(world: World, source: int, sending: Sending, receivers: set[int]) -> Iterator[str]:
    """I10 and I11: what a failed process sent is delivered by all or by none."""
    correct = {to for to, _ in sending.parts} & world.judged
    delivered, stamp = receivers & correct, world.controller.failed.get(source)
    if delivered and delivered != correct:
        yield f"I10 {sending.stamp} of {source} is at {delivered} and not at {correct - delivered}"
    if stamp is not None and delivered and sending.stamp > stamp:
        yield f"I11 {delivered} delivered {sending.stamp} of {source}, which failed at {stamp}"
    is_due = stamp is not None and sending.stamp <= stamp and not sending.failed
    if is_due and delivered != correct:
        yield f"I11 {sending.stamp} of {source} is not delivered: it failed at {stamp}"


def told(world: World) -> Iterator[str]:
    """I13: each process that goes on is told of a failure once, at its place in the order.

    That is each that was here when it was decided. The world looks at barriers at each step.
    """
    for process, host in world.correct.items():
        events = sorted((event.process, event.stamp) for event, _ in host.told_failed)
        if events != (due := sorted(host.due_failures.items())):
            yield f"I13 {process} was told of the failures {events}, and there were {due}"
        for event, before in host.told_failed:
            reliable = [(n, one.message.stamp) for n, one in enumerate(host.deliveries)
                        if one.message.service is R]  # fmt: skip
            if any((n < before) != (stamp <= event.stamp) for n, stamp in reliable):
                yield f"I13 {process} was told of {event} at another place than its stamp"


def live(world: World) -> Iterator[str]:
    """I14 and I16: all scatterings leave, and barriers follow the clocks."""
    shape, now = world.shape, world.network.now
    delay = shape.faults.delay + shape.faults.jitter
    bound = lag_max(world)
    for process, host in world.hosts.items():
        if host.is_returning:
            yield f"I14 {process} was excluded, and not told what became of what it holds"
    for process, host in world.correct.items():
        if not host.has_joined:
            yield f"I14 {process} has not joined, though the switch of its rack hears it"
            continue
        lag = now - min(host.endpoint.barriers)
        if lag > bound + 8 * T:
            yield f"I14 a barrier of {process} stands still: it lags by {lag / T:.1f} T"
        for sending in host.sendings.values():
            if not sending.stamp and not sending.failed:
                yield f"I16 a scattering of {process} never left"
        if shape.is_calm:
            barrier, commit = host.endpoint.barriers
            if now - barrier > bound:
                yield f"I14 the barrier of {process} lags by {(now - barrier) / T:.1f} T"
            if now - commit > bound + 2 * delay:
                yield f"I14 the commit barrier of {process} lags by {(now - commit) / T:.1f} T"


def routed(world: World) -> Iterator[str]:
    """Routes: each switch forwards as the controller has decided last.

    One that obeys a former leader would send by a cable that is dead, for ever.
    """
    if world.control.under_way:
        return
    for id in world.switches.keys() - world.dead:
        if world.switches[id].routes != world.controller.current_routes(id):
            yield f"Routes switch {id} forwards as the controller has decided before"
