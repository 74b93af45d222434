"""Which unfinished frames get memory, in which order, and which lose it."""

from __future__ import annotations

from itertools import count

import pytest

from weir.broker.runtime.budget import FIRST_BYTES, Incoming, Reservations, State, Unfinished
from weir.model.limits import CLIENT_FRAME_BYTES_MAX, MIB

LARGE = 8 * MIB
BUDGET = 128 * MIB  # 32 MiB for first bytes; 64 MiB for reservations, which is 8 large frames
TICK = 0.05


class Scene:
    """Reservations and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reservations = Reservations(BUDGET, self.now)
        self._connections = count(1)

    def frame(self, principal: str = "p", address: str = "a") -> Incoming:
        return Incoming(next(self._connections), principal, address)

    def begin(self, principal: str = "p", address: str = "a", size: int = LARGE) -> Incoming:
        """Let the first bytes of a frame come, so that it asks for a reservation."""
        frame = self.frame(principal, address)
        self.reservations.arrived(frame, FIRST_BYTES, size)
        self.reservations.advance(self.now)
        return frame

    def fill(self) -> list[Incoming]:
        return [self.begin() for _ in range(8)]

    def wait(self, seconds: float) -> list[Incoming]:
        """Let time pass, with a tick now and then; return what has changed."""
        changed, end = [], self.now + seconds
        while self.now < end:
            self.now += TICK
            changed += self.reservations.advance(self.now)
        return changed


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_claim_costs_nothing_and_bytes_that_came_do(scene: Scene) -> None:
    for _ in range(1_000):
        scene.reservations.arrived(scene.frame(), 1_000, LARGE)
    assert (scene.reservations.first_bytes, scene.reservations.reserved_bytes) == (1_000_000, 0)
    assert scene.begin(size=MIB).state is State.RESERVED


def test_a_large_frame_gets_its_reservation_at_once_where_there_is_room(scene: Scene) -> None:
    frame = scene.begin()
    assert (frame.state, frame.is_read) == (State.RESERVED, True)
    assert (scene.reservations.first_bytes, scene.reservations.reserved_bytes) == (0, LARGE)
    scene.reservations.arrived(frame, LARGE - 1, LARGE)
    scene.reservations.ended(frame)
    assert scene.reservations.reserved_bytes == 0


def test_a_frame_of_64_kib_never_asks(scene: Scene) -> None:
    frame = scene.frame()
    scene.reservations.arrived(frame, FIRST_BYTES - 1, FIRST_BYTES)
    assert (frame.state, scene.reservations.reserved_bytes) == (State.BEGUN, 0)


def test_the_frame_that_has_waited_longest_for_its_next_bytes_is_evicted(scene: Scene) -> None:
    limit = scene.reservations.first_bytes_limit
    frames = [scene.frame() for _ in range(limit // 60_000)]
    for frame in frames:
        scene.reservations.arrived(frame, 60_000, FIRST_BYTES)
    scene.reservations.arrived(frames[0], 60_001, FIRST_BYTES)
    assert not scene.reservations.is_due
    last = scene.frame()
    scene.reservations.arrived(last, 60_000, FIRST_BYTES)
    assert scene.reservations.is_due
    assert scene.reservations.advance(0) == [frames[1]]
    assert frames[1].state is State.EVICTED
    assert scene.reservations.first_bytes <= limit
    assert scene.reservations.evicted == 1


def test_a_frame_that_waits_may_be_evicted_too_and_leaves_the_line(scene: Scene) -> None:
    scene.fill()
    waiting = scene.begin()
    assert (waiting.state, waiting.is_read) == (State.WAITING, False)
    rest = scene.reservations.first_bytes_limit
    for _ in range(rest // 60_000):
        scene.reservations.arrived(scene.frame(), 60_000, FIRST_BYTES)
    assert scene.reservations.advance(0) == [waiting]
    assert scene.reservations.waiting == 0


def test_a_frame_waits_unread_until_others_end(scene: Scene) -> None:
    full = scene.fill()
    waiting = scene.begin()
    assert waiting.state is State.WAITING
    scene.reservations.ended(full[3])
    assert scene.reservations.advance(0) == [waiting]
    assert waiting.state is State.RESERVED


def test_nothing_is_revoked_while_nobody_waits(scene: Scene) -> None:
    full = scene.fill()
    assert scene.wait(3_600) == []
    assert all(frame.state is State.RESERVED for frame in full)


def test_the_slowest_reservation_is_revoked_once_it_is_old_enough(scene: Scene) -> None:
    full = scene.fill()
    for at, frame in enumerate(full):
        scene.reservations.arrived(frame, FIRST_BYTES + 1_000 * (8 - (at + 3) % 8), LARGE)
    slowest = full[4]
    waiting = scene.begin()
    assert scene.wait(0.2) == []
    assert set(scene.wait(0.1)) == {slowest, waiting}
    assert (slowest.state, waiting.state) == (State.REVOKED, State.RESERVED)
    assert scene.reservations.reserved_bytes == scene.reservations.limit


def test_a_slow_reservation_is_told_by_its_rate_not_by_its_bytes(scene: Scene) -> None:
    old = scene.fill()
    for frame in old:
        scene.reservations.arrived(frame, FIRST_BYTES + 300_000, LARGE)
    scene.reservations.ended(old[0])
    scene.wait(10)
    young = scene.begin()
    scene.wait(0.3)
    scene.reservations.arrived(young, FIRST_BYTES + 100_000, LARGE)
    scene.begin()
    assert young.state is State.RESERVED
    assert [frame.state for frame in old].count(State.REVOKED) == 1


def test_the_fastest_is_never_revoked_so_one_frame_always_gets_through(scene: Scene) -> None:
    frames = scene.fill()
    hero = frames[5]
    for _ in range(40):
        scene.begin()
    came = FIRST_BYTES
    while came < LARGE:
        came += 20_000
        scene.reservations.arrived(hero, came, LARGE)
        scene.wait(TICK)
        assert hero.state is State.RESERVED
    assert scene.reservations.revoked > 30


def test_time_in_which_the_process_stood_still_is_no_fault_of_a_peer(scene: Scene) -> None:
    full = scene.fill()
    scene.begin()
    scene.now += 60
    assert scene.reservations.advance(scene.now) == []
    assert all(frame.state is State.RESERVED for frame in full)


def test_turns_go_round_by_principal_then_address_then_connection(scene: Scene) -> None:
    full = scene.fill()
    line = [
        scene.begin("greedy", "x"),
        scene.begin("greedy", "x"),
        scene.begin("greedy", "x"),
        scene.begin("greedy", "y"),
        scene.begin("modest", "x"),
        scene.begin("modest", "x"),
    ]
    served = []
    for frame in full[:6]:
        scene.reservations.ended(frame)
        served += scene.reservations.advance(0)
    assert [line.index(frame) for frame in served] == [0, 4, 3, 5, 1, 2]


def test_a_frame_that_needs_more_room_is_not_passed_by_smaller_ones(scene: Scene) -> None:
    full = scene.fill()
    large, small = scene.begin(), scene.begin(size=FIRST_BYTES + 1)
    scene.reservations.ended(full[0])
    assert scene.reservations.advance(0) == [large]
    assert small.state is State.WAITING


def test_what_ends_gives_all_back_in_any_state(scene: Scene) -> None:
    frames = [*scene.fill(), scene.begin(), scene.begin(), scene.frame()]
    scene.reservations.arrived(frames[-1], 7, 0)
    for frame in frames:
        scene.reservations.ended(frame)
    left = scene.reservations
    assert (left.first_bytes, left.reserved_bytes, left.waiting) == (0, 0, 0)


@pytest.mark.parametrize("budget", [0, 1, 66 * MIB])
def test_the_pool_holds_four_of_the_largest_frames_however_small_the_budget(budget: int) -> None:
    reservations = Reservations(budget, 0)
    frames = [Incoming(n, "p", "a") for n in range(4)]
    for frame in frames:
        reservations.arrived(frame, FIRST_BYTES, CLIENT_FRAME_BYTES_MAX + 16)
    reservations.advance(0)
    assert [frame.state for frame in frames] == [State.RESERVED] * 4


def test_the_frame_that_moved_last_stays_though_it_alone_is_over_the_limit() -> None:
    pool: Unfinished[str] = Unfinished(100)
    pool.came("one", 90)
    pool.came("two", 150)
    assert pool.overflow() == ["one"]
    assert (pool.overflow(), pool.used) == ([], 150)
    pool.came("two", 0)
    assert pool.used == 0
