"""Endpoints on the switch of one rack, in steps of virtual time: a packet takes no time."""

from __future__ import annotations

from collections.abc import Callable

from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import EndpointConfig, Event, Message, Service, Undeliverable
from weir_toc.node import Send, SwitchConfig, SwitchNode
from weir_toc.topology import Topology, process_id

T = 1_000_000
START = ((1 << 48) - 1_000_000_000) // T * T


class OneRack:
    """Processes 1 to `count` of rack 0."""

    def __init__(self, count: int, **settings: int) -> None:
        self.now = START
        topology = Topology.tree(1)
        self.switch = SwitchNode(
            topology.switch_of_rack(0), topology, START, SwitchConfig(interval=T)
        )
        self.settings = settings
        self.endpoints: dict[int, Endpoint] = {}
        self.events: dict[int, list[Event]] = {}
        #: Whether a packet on its way from a process to the switch is lost.
        self.loses: Callable[[int, bytearray], bool] = lambda _process, _data: False
        #: Packets that processes have sent and that the switch has not been given yet.
        self.holds: Callable[[int, bytearray], bool] = lambda _process, _data: False
        self.held: list[tuple[int, bytearray]] = []
        #: Whether the controller notes at once what failed receivers cannot be told.
        self.notes = True
        for _ in range(count):
            self.join()
        self.run(3)

    def join(self) -> int:
        process = process_id(0, len(self.endpoints) + 1)
        config = EndpointConfig(interval=T, **self.settings)
        self.endpoints[process] = Endpoint(process, 1, self.now, config)
        self.events[process] = []
        return process

    def send(self, process: int, service: Service, *parts: tuple[int, bytes]) -> int:
        ticket = self.endpoints[process].send(self.now, service, parts)
        self.carry()
        return ticket

    def carry(self) -> None:
        """Carry all packets until there are none."""
        moved = True
        while moved:
            moved = False
            for process, endpoint in self.endpoints.items():
                for data in endpoint.take_packets():
                    moved = True
                    if self.holds(process, data):
                        self.held.append((process, data))
                    elif not self.loses(process, data):
                        self.give(process, data)
                self.events[process] += (events := endpoint.take_events())
                for event in events:
                    if isinstance(event, Undeliverable) and self.notes:
                        endpoint.recalls_noted(self.now, event.process)
                        moved = True

    def give(self, process: int, data: bytearray) -> None:
        """Give the switch a packet, and the processes what it sends on."""
        self._effects(self.switch.receive(self.now, process, data))

    def release(self) -> None:
        """Give the switch all packets that were held."""
        held, self.held = self.held, []
        for process, data in held:
            self.give(process, data)
        self.carry()

    def run(self, intervals: float) -> None:
        """Let time pass in quarters of an interval."""
        for _ in range(int(4 * intervals)):
            self.now += T // 4
            if self.now >= self.switch.deadline:
                self._effects(self.switch.tick(self.now))
            for endpoint in self.endpoints.values():
                if self.now >= endpoint.deadline:
                    endpoint.tick(self.now)
            self.carry()

    def messages(self, process: int) -> list[Message]:
        return [one for one in self.events[process] if isinstance(one, Message)]

    def texts(self, process: int) -> list[bytes]:
        return [one.payload for one in self.messages(process)]

    def _effects(self, effects: list) -> None:  # type: ignore[type-arg]
        for effect in effects:
            if isinstance(effect, Send):
                self.endpoints[effect.to].receive(self.now, [bytes(effect.data)])
