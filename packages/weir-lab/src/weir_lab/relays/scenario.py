"""What happens in a world of tiers: a seed draws its shape, its faults and what is published.

outcome = play(7)
assert not outcome.violations
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from weir.model.ids import LIMIT_MAX
from weir.model.limits import HOLD_BYTES_DEFAULT
from weir.relay.holds import Child
from weir.relay.rows import RowKind
from weir_lab.relays.world import CORE, START_MS, Shape, World

#: Once all is quiet, all must be at the core's end within this time.
QUIET_MS = 60_000
STEP_MS = 2_000
#: Between two turns of what is published, committed and broken.
TURN_MS = 50
_TAGS = ("", "a", "b", "c")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    violations: tuple[str, ...]
    stored: int
    gaps: int
    cuts: int
    messages: int


def drawn(seed: int) -> Shape:
    """Return the shape of a seed."""
    dice = Random(f"shape {seed}")
    tandems: list[Child] = [(10 + n, 1) for n in range(dice.choice((1, 1, 2)))]
    tree: dict[Child, tuple[Child, ...]] = dict.fromkeys(tandems, (CORE,))
    last = list(tandems)
    if dice.random() < 0.4:  # a second tier of tandem sets
        second: Child = (20, 1)
        tree[second] = (*dice.sample(tandems, len(tandems)), CORE)
        last.append(second)
    for n in range(dice.randint(1, 2)):
        owners = 2 if dice.random() < 0.4 else 1
        for node in range(1, owners + 1):
            tree[30 + n, node] = (*dice.sample(last, len(last)), CORE)
    is_faulty = dice.random() < 0.85
    shape = Shape(
        active_ms=dice.choice((1_500, 3_000, 6_000)),
        partitions=dice.choice((1, 1, 2, 3)),
        tree=tree,
        loss=dice.choice((0.0, 0.01, 0.1)) if is_faulty else 0.0,
        damage=dice.choice((0.0, 0.05)) if is_faulty else 0.0,
        sync_ms=dice.choice((5, 50, 1_500)),
        latency_ms=dice.choice((2, 20, 200)),
        bytes_max=dice.choice((HOLD_BYTES_DEFAULT, HOLD_BYTES_DEFAULT, HOLD_BYTES_DEFAULT, 1_000)),
        rows_max=dice.choice((1, 3, 20)),
        faults=dice.choice((0.02, 0.08)) if is_faulty else 0.0,
        promotes=dice.random() < 0.4,
    )
    more = Random(f"stale {seed}")
    if len(tandems) > 1 and more.random() < 0.5:  # each is the other's upper
        tree |= {tandems[0]: (tandems[1], CORE), tandems[1]: (tandems[0], CORE)}
    return shape._replace(
        stale_ms=more.choice((1_500, 10_000)),
        cut_off=tandems[0] if more.random() < 0.3 else None,
    )


def play(seed: int) -> Outcome:
    """Play the world of a seed to its end, or to the first thing that is wrong."""
    shape = drawn(seed)
    world = World(shape, seed)
    value = 0
    while world.now < START_MS + shape.active_ms and not world.violations:
        world.run(world.now + TURN_MS)
        value = _publish(world, value)
        if world.random.random() < shape.faults:
            _break(world)
        _retain(world)
    world.shape = shape._replace(loss=0.0, damage=0.0)
    world.cut_off.clear()
    if shape.cut_off is not None:
        for upper in world.shape.tree[shape.cut_off]:
            pair = min(shape.cut_off, upper), max(shape.cut_off, upper)
            world.cut_off[pair] = LIMIT_MAX
    _finish(world)
    broken = world.violations
    quiet = world.now + QUIET_MS
    while not broken and world.now < quiet:
        world.run(world.now + STEP_MS)
        _promise(world)
        broken = list(world.violations)
        if not broken and not world.unfinished():
            break
    else:
        broken = broken or world.unfinished()
    return Outcome(
        seed, tuple(broken), world.tally.stored, world.tally.gaps, world.tally.cuts, value
    )


def _publish(world: World, value: int) -> int:
    """Publish, commit and promise what the dice say."""
    dice = world.random
    for partition in range(world.joined):
        core = world.cores[partition]
        core.stamp = max(core.stamp, world.now)
        roll = dice.random()
        if roll < 0.5:
            count = dice.randint(1, 4)
            tags = dice.sample(_TAGS, dice.choice((1, 1, 2)))
            messages = [(dice.choice(tags), value + n) for n in range(count)]
            value += count
            if roll < 0.04:
                core.publish(messages, RowKind.VOID)
            elif roll < 0.08:
                core.publish(messages[:1], RowKind.BATCH, dice.randint(1, 4))
            elif roll < 0.14:
                core.publish(messages, RowKind.BATCH_MORE)
                core.publish(messages[:1], RowKind.BATCH, is_same_stamp=True)
            else:
                core.publish(messages, RowKind.BATCH)
        core.commit(dice.randint(0, 3))
        if dice.random() < 0.05:
            core.change_leader()
    _join(world)
    _promise(world)
    return value


def _join(world: World) -> None:
    """Let one more partition join; it takes messages once partition 0 has committed that."""
    first = world.cores[0]
    joined = min(2, world.shape.partitions) + len(first.roster)
    if joined > world.joined:
        world.cores[joined - 1].stamp = first.stamp
        world.joined = joined
        return
    is_idle = joined < world.shape.partitions and len(first.log.roster) == len(first.roster)
    if is_idle and world.random.random() < 0.05:
        first.join(joined)
        first.commit(0)


def _promise(world: World) -> None:
    for partition in range(world.joined):
        if world.random.random() < 0.5:
            world.cores[partition].promise(world.joined, world.now)
        world.log_moved(partition)


def _retain(world: World) -> None:
    """Let retention go on, in the core and in relays."""
    dice = world.random
    for partition, core in enumerate(world.cores):
        if dice.random() < 0.2:
            world.retention[partition] = max(core.end - dice.randint(0, 12), 0)
            core.retain(world.retention[partition], world.now)
            world.tell_all()


def _break(world: World) -> None:
    dice = world.random
    me = dice.choice(list(world.relays))
    relay = world.relays[me]
    match dice.randrange(9 if world.shape.promotes else 6):
        case 0 | 1:
            world.restart(relay)
        case 2:
            world.lose_disk(relay)
        case 3:
            world.draw_interest(me)
        case 4:
            upper = dice.choice(world.uppers[me])
            world.cut_off[min(me, upper), max(me, upper)] = world.now + dice.randint(100, 4_000)
        case 5:  # it moves to another upper node
            uppers = list(world.uppers[me][:-1])
            dice.shuffle(uppers)
            world.uppers[me] = (*uppers, CORE) if dice.random() < 0.9 else (CORE,)
            world.merge_interest()
            world.tell_all()
        case _:
            partition = dice.randrange(world.joined)
            world.promote(partition, dice.randint(0, 8))


def _finish(world: World) -> None:
    """Commit all, let every set have its uppers again, and let all that is said be known."""
    world.uppers = dict(world.shape.tree)
    world.merge_interest()
    for core in world.cores:
        core.commit(len(core.log.items))
    world.tell_all()
