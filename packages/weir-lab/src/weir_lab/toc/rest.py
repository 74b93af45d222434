"""When nothing more can happen in a world whose faults have ended."""

from __future__ import annotations

from weir_lab.toc.world import T, World

#: Whoever beacons each interval was heard of so many intervals ago at most.
_HEARD = 4


def is_settled(world: World) -> bool:
    """Whether all that was sent is delivered or given up, as far as processes know."""
    if world.controller.is_undecided or world.controller.failures or world.control.under_way:
        return False
    if world.control.to_exclude:
        return False  # one that has failed and sends still may hold down the barriers of others
    if any(host.is_returning for host in world.hosts.values()):
        return False
    for host in world.correct.values():
        if host.settled - {event.process for event, _ in host.told_failed}:
            return False  # the place of a failure in the order is yet to come
        state = host.endpoint.describe()
        if (
            not state or state["buffered"] or state["open"] or state["best_effort"]
            or state["reordering"] or any(not one.stamp and not one.failed
                                          for one in host.sendings.values())
        ):  # fmt: skip
            return False
    return True


def is_at_rest(world: World) -> bool:
    """Whether, once all is settled, nobody is about to be taken for silent or to come back.

    All switches have just heard of all inputs that count, and barriers follow the clocks.
    """
    network, control = world.network, world.control
    if network.severed or control.unreached or control.mute:
        return False
    oldest = network.now - lag_max(world)
    if any(min(host.endpoint.barriers) < oldest for host in world.correct.values()):
        return False
    for id in world.switches.keys() - world.dead:
        now = world.clock_of(id).now(network.now)
        for neighbour, one in world.switches[id].registers().items():
            if not one.live:
                if one.held_until > now:
                    return False
            elif now - one.heard_at > _HEARD * T or (
                neighbour in world.hosts and now - one.risen_at > _HEARD * T
            ):
                return False
    return True


def lag_max(world: World) -> int:
    """How far barriers may be behind true time, in nanoseconds, once nothing fails."""
    shape, faults = world.shape, world.shape.faults
    path = world.topology.longest_path * (faults.delay + faults.jitter + T // 4)
    return 2 * shape.skew + 3 * T + path
