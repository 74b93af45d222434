"""What a simulated consumer does with a grant besides acking it: give it back, keep it longer."""

from __future__ import annotations

from weir.errors import StaleGrant, UnknownCluster, refusal
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Extension, Grant, Return
from weir_lab.sim.programs.program import Client

_DELAYS_MS = (0, 0, 30, 300)
_EXTENSIONS_MS = (60, 400)
#: For how long a message may be with nobody, or with one consumer, at most.
HOLD_MS_MAX = max(*_DELAYS_MS, *_EXTENSIONS_MS)
_UNTRIED = 0.2


class Hands:
    """Nacks and extensions of one consumer."""

    def __init__(self, client: Client, partition: int) -> None:
        """Ask as `client` of this partition."""
        self._client = client
        self._partition = partition
        #: How many have no answer yet.
        self.waiting = 0

    def closed(self) -> None:
        """Forget what was asked."""
        self.waiting = 0

    def give_back(self, grant: Grant, first: int, behind: int) -> None:
        """Give a part of a grant back, for now or for a while; it may be another's already."""
        client, dice = self._client, self._client.world.dice
        if client.link is None or not client.addresses:
            return
        delay_ms, untried = dice.choice(_DELAYS_MS), client.world.chance(_UNTRIED)
        now = client.world.now
        one = Return(
            grant.partition, grant.cluster, grant.fence, first, behind, delay_ms, untried, now
        )
        client.history.returns.append(one)
        self.waiting += 1
        address = client.addresses[self._partition]
        ranges = [(first, behind)]
        nack = m.Nack(address, grant.cluster, grant.fence, ranges, delay_ms, untried)
        client.ask(nack, lambda reply: self._answered(one, reply))

    def extend(self, grant: Grant) -> int:
        """Keep a grant longer; return for how long from now, in virtual µs."""
        client, lease_ms = self._client, self._client.world.dice.choice(_EXTENSIONS_MS)
        one = Extension(grant.partition, grant.cluster, grant.fence, lease_ms, client.world.now)
        client.history.extensions.append(one)
        self.waiting += 1
        address = client.addresses[self._partition]
        extend = m.Extend(address, grant.cluster, [grant.fence], lease_ms)
        client.ask(extend, lambda reply: self._answered(one, reply))
        return lease_ms * MS

    def _answered(self, one: Return | Extension, reply: m.Reply) -> None:
        self.waiting -= 1
        if isinstance(reply, m.Nacked | m.Extended):
            one.confirmed = self._client.world.now
        elif isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            if isinstance(one, Extension) and isinstance(error, StaleGrant):
                one.stale = self._client.world.now
            elif not error.retryable and not isinstance(error, StaleGrant | UnknownCluster):
                what = type(one).__name__.lower()
                self._client.complain("Leased", f"{what} was refused: {error!r}")
