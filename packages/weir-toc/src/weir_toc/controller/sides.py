"""Which racks go on when cables are cut: the heaviest set whose racks all reach each other.

Reach is not transitive. When rack 0 has lost one spine and rack 2 the other one, both reach rack 1,
and neither reaches the other one. So this is the search for a clique of greatest weight. Racks that
reach the same ones are taken as one group, and most networks have few groups. The search branches
and bounds, and takes the heaviest group first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

#: The search stops after so many steps with the heaviest set so far. Only many groups that overlap
#: without order need more.
STEPS_MAX = 10_000
#: Above the number of racks, which decides between sets with as many processes.
_PROCESS = 1 << 16


def heaviest_side(
    reached: Mapping[int, frozenset[int]], processes: Mapping[int, int]
) -> frozenset[int]:
    """Return the racks that all reach each other and hold most processes.

    `reached` maps each rack to those that it reaches, itself among them; `processes` tells how many
    each one holds. Of two sets with as many processes the one with more racks is returned, then the
    one with the lowest number that only one of them has.
    """
    groups = _groups(reached)
    weight = {
        group: sum(_PROCESS * processes.get(rack, 0) + 1 for rack in group) for group in groups
    }
    groups.sort(key=lambda group: (-weight[group], group))
    first = [reached[group[0]] for group in groups]
    joined = [
        sum(
            1 << j
            for j, other in enumerate(groups)
            if i != j and other[0] in first[i] and groups[i][0] in first[j]
        )
        for i in range(len(groups))
    ]
    best: tuple[int, list[int]] = (0, [])
    for chosen in _sets([weight[group] for group in groups], joined):
        racks = sorted(rack for i in _bits(chosen) for rack in groups[i])
        found = sum(weight[groups[i]] for i in _bits(chosen))
        if found > best[0] or (found == best[0] and racks < best[1]):
            best = found, racks
    return frozenset(best[1])


def _groups(reached: Mapping[int, frozenset[int]]) -> list[tuple[int, ...]]:
    """Return the racks that reach the same ones, and so each other, group by group."""
    found: dict[frozenset[int], list[int]] = {}
    for rack in sorted(reached):
        found.setdefault(reached[rack], []).append(rack)
    return [tuple(group) for group in found.values()]


def _sets(weights: Sequence[int], joined: Sequence[int]) -> Iterator[int]:
    """Yield sets of groups as bits, all of which are joined to each other; the heaviest is there.

    `joined` has the bits of the groups that each one may be with. What cannot be as heavy as a set
    that was yielded is left out.
    """
    heaviest = 0
    waiting = [((1 << len(weights)) - 1, 0, 0)]
    for _ in range(STEPS_MAX):
        if not waiting:
            return
        candidates, chosen, weight = waiting.pop()
        if weight + sum(weights[i] for i in _bits(candidates)) < heaviest:
            continue
        if not candidates:
            heaviest = weight
            yield chosen
            continue
        one = (candidates & -candidates).bit_length() - 1
        rest = candidates & ~(1 << one)
        if rest & ~joined[one]:  # otherwise each set is heavier with it
            waiting.append((rest, chosen, weight))
        waiting.append((rest & joined[one], chosen | 1 << one, weight + weights[one]))


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
