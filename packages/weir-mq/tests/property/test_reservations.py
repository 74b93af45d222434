"""Any interleaving of claims, bytes and silence decides every honest frame in bounded time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from weir.broker.runtime.budget import FIRST_BYTES, Incoming, Reservations, State
from weir.model.limits import CLIENT_FRAME_BYTES_MAX, MIB

BUDGET = 66 * MIB
TICK = 0.05
STEP = 1 << 18  # what a connection brings in a read
SIZES = st.sampled_from([1_000, FIRST_BYTES, FIRST_BYTES + 1, MIB, 4 * MIB, CLIENT_FRAME_BYTES_MAX])

#: A connection: principal, address, bytes claimed, bytes that it sends at most, ticks that it is
#: silent after each read, and the tick at which it begins.
CONNECTION = st.tuples(
    st.integers(0, 2), st.integers(0, 2), SIZES, SIZES, st.integers(0, 40), st.integers(0, 60)
)


class Player:
    """One connection that sends a frame after the other has been decided, or falls silent."""

    def __init__(self, number: int, plan: tuple[int, int, int, int, int, int]) -> None:
        principal, address, self.size, sends, self.rest, self.begins = plan
        self.frame = Incoming(number, str(principal), str(address))
        self.most = min(self.size, sends)
        self.is_honest = self.most == self.size and self.rest == 0
        self.done = False

    def play(self, tick: int, reservations: Reservations) -> None:
        frame = self.frame
        if self.done or tick < self.begins or frame.state in (State.EVICTED, State.REVOKED):
            return
        if not frame.is_read or (tick - self.begins) % (self.rest + 1):
            return
        came = min(frame.came + STEP, self.most)
        if came == self.size:
            reservations.ended(frame)
            self.done = True
        elif came > frame.came:
            reservations.arrived(frame, came, self.size)

    @property
    def is_decided(self) -> bool:
        return self.done or self.frame.state in (State.EVICTED, State.REVOKED)


@settings(max_examples=150, deadline=None)
@given(st.lists(CONNECTION, min_size=1, max_size=60))
def test_every_honest_frame_is_decided_in_bounded_time(
    plans: list[tuple[int, int, int, int, int, int]],
) -> None:
    reservations = Reservations(BUDGET, 0.0)
    players = [Player(n, plan) for n, plan in enumerate(plans)]
    # A frame is read in 33 steps at most, and waits 5 ticks for each that is before it.
    ticks = 60 + 40 + 6 * len(plans)
    for tick in range(ticks):
        for player in players:
            player.play(tick, reservations)
            reservations.advance(tick * TICK)
        check(reservations, players)
    assert all(player.is_decided for player in players if player.is_honest)
    for player in players:
        if not player.done:
            reservations.ended(player.frame)
    assert (reservations.first_bytes, reservations.reserved_bytes) == (0, 0)
    assert reservations.waiting == 0


def check(reservations: Reservations, players: list[Player]) -> None:
    """Nothing is over its limit, and what is charged is what came, or was reserved."""
    assert reservations.first_bytes <= reservations.first_bytes_limit
    assert reservations.reserved_bytes <= reservations.limit
    here = [player.frame for player in players if not player.done]
    reserved = sum(frame.size for frame in here if frame.state is State.RESERVED)
    first = sum(frame.came for frame in here if frame.state in (State.BEGUN, State.WAITING))
    assert (reservations.reserved_bytes, reservations.first_bytes) == (reserved, first)
    waiting = [frame for frame in here if frame.state is State.WAITING]
    assert len(waiting) == reservations.waiting
