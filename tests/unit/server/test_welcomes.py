"""Who is let out when, and who greets at all."""

from __future__ import annotations

from weir.server.welcomes import TOGETHER_SECONDS, Welcomes, greets
from weir.wire.device import DeviceHello, DevicePing, DevicePublishes


class Noting:
    """Counts how often it is let out."""

    def __init__(self) -> None:
        self.out = 0

    def let_out(self) -> None:
        self.out += 1


def test_welcomes_are_let_out_by_age() -> None:
    now = 0.0
    welcomes = Welcomes(lambda: now)
    first, second = Noting(), Noting()
    welcomes.wait(first)
    now = TOGETHER_SECONDS / 2
    welcomes.wait(second)
    welcomes.tick()
    assert (first.out, second.out) == (0, 0)
    now = TOGETHER_SECONDS
    welcomes.tick()
    assert (first.out, second.out) == (1, 0)
    welcomes.close()
    welcomes.tick()
    assert (first.out, second.out) == (1, 1)


def test_who_publishes_behind_its_hello_greets() -> None:
    hello, publishes = DeviceHello(0, 1, 1, 0, "t"), DevicePublishes([1], [0], [b"value"], [0])
    assert greets([hello, publishes])
    assert not greets([hello])
    assert not greets([hello, DevicePing(1)])
    assert not greets([publishes, publishes])
