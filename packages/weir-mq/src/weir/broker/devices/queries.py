"""What is asked of partitions for devices, here or in other shards, and who gets the reply."""

from __future__ import annotations

from weir.broker.devices.subscriptions import Receiver, Then
from weir.broker.forwarding.forwarder import Passing
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import TO_DEVICE, Caller, Outbox
from weir.errors import Overloaded, Refused
from weir.model.limits import REQUESTS_PENDING_MAX, RETRY_AFTER_MS
from weir.protocol.client import messages as m

Asked = m.OpenCluster | m.Pull | m.Fetch | m.Ack | m.Nack | m.Extend


class Asking:
    """Asks as a client of the connection's would; replies come back by `Outbox.kept`."""

    __slots__ = ("_outbox", "_passing", "_topics")

    def __init__(self, topics: Topics, outbox: Outbox, passing: Passing) -> None:
        """Ask what `topics` serves here, and by way of `passing` what lies in other shards."""
        self._topics = topics
        self._outbox = outbox
        self._passing = passing

    def ask(self, receiver: Receiver, request: Asked, then: Then) -> None:
        """Ask a partition; `then` gets the reply, a refusal at once if it is one."""
        receiver.correlation += 1
        caller = Caller(receiver.session, TO_DEVICE, receiver.correlation)
        try:
            if len(receiver.asked) >= REQUESTS_PENDING_MAX:
                raise Overloaded(f"{REQUESTS_PENDING_MAX} requests wait", RETRY_AFTER_MS)
            receiver.asked[caller.correlation] = then
            self._send(caller, request)
        except Refused as error:
            receiver.asked.pop(caller.correlation, None)
            then(m.Refusal(error.code, str(error), error.detail))

    def _send(self, caller: Caller, request: Asked) -> None:
        place = self._passing.routes.toward(request.address.group)
        if place != self._passing.shard:
            self._passing.ask(caller, request, place)
            return
        _, partition = self._topics.partition(request.address.group)
        match request:
            case m.OpenCluster():
                partition.open_cluster(caller, request)
            case m.Pull():
                partition.pull(caller, request)
            case m.Fetch():
                partition.fetch(caller, request)
            case m.Ack() | m.Nack() | m.Extend():
                partition.settle(caller, request)

    def advance(self, receivers: dict[int, Receiver]) -> None:
        """Hand over whatever was answered."""
        kept = self._outbox.kept
        while kept:
            caller, reply = kept.popleft()
            receiver = receivers.get(caller.session)
            if receiver is not None:
                receiver.asked.pop(caller.correlation)(reply)
