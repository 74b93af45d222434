"""Simulated devices of a fleet: one is replaced, and both have a secret at once for a while."""

from __future__ import annotations

import struct

from weir.access.devices import FLEET_KEY_BYTES, NONCE_BYTES, Level, derive_secret, prove_device
from weir.errors import LevelTooLow, NotAuthenticated, refusal
from weir.model.columns import epoch_of
from weir.protocol import device as d
from weir.protocol.client import fleets as f
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.proof import Challenge, DeviceHello, DeviceProof
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.programs.program import TOPIC, Client
from weir_lab.sim.programs.publishers.hubs import Hub, Value
from weir_lab.sim.programs.scene import Scene

FLEET, FIRST, LAST = "locks", 9_000, 9_099
KEY = b"weir".ljust(FLEET_KEY_BYTES, b"\0")
_REPLACE = (5 * MS, 150 * MS)
#: How long it takes to hang the new device.
_HANG = (0, 200 * MS)
_NONCE = struct.Struct(">II")


class FleetHub(Hub):
    """A hub that proves its identity if it must, and ends when its successor has connected."""

    def __init__(
        self, scene: Scene, name: str, hub: int, partition: int, messages: int, generation: int
    ) -> None:
        """Be the device of this generation; one above 0 begins when it is told to."""
        super().__init__(scene, name, hub, partition, messages)
        self._generation = generation
        self._connections = 0
        self._may_begin = not generation
        self._asked: Challenge | None = None
        #: Whether it has tried to prove its identity.
        self.came = False
        #: The device that takes its place.
        self.successor: FleetHub | None = None

    @property
    def epoch(self) -> int:
        """What its sequences are counted in."""
        return epoch_of(self._generation, self._boot)

    def begin(self) -> None:
        """The registry knows that this device takes the place of another one."""
        if not self._may_begin and not self.ending:
            self._may_begin = True
            self.start()

    def start(self) -> None:
        """Dial, once it may begin."""
        if self._may_begin:
            super().start()

    def received(self, link: Link, data: bytes) -> None:
        """Answer challenges; all else is as of any hub."""
        if link is not self.link:
            return
        for reply in self._replies.receive(data):
            self.world.note(self.name, reply.opcode, reply.code)
            if isinstance(reply.content, Challenge):
                self._prove(reply.content)
            elif reply.opcode == d.DeviceOpcode.PROVE:
                self._proved(reply)
            else:
                self.take(reply)

    def _greet(self) -> None:
        self._connections += 1
        self._send(d.hello(self._hub, self._boot, TOPIC, self._partition))

    def _prove(self, asked: Challenge) -> None:
        self.came = True
        nonce = _NONCE.pack(self._boot, self._connections).ljust(NONCE_BYTES, b"\0")
        unproven = DeviceProof(0, self._generation, 1, Level.PROOF, nonce, bytes(32))
        claim = unproven.claim(asked, DeviceHello(0, self._hub, self._boot, self._partition, TOPIC))
        secret = derive_secret(KEY, asked.system, self._hub, self._generation)
        proof = prove_device(secret, claim)
        self._send(d.prove(DeviceProof(0, self._generation, 1, Level.PROOF, nonce, proof)))

    def _proved(self, reply: d.DeviceReply) -> None:
        if not reply.code:
            self._greeted(reply)
        elif reply.code == NotAuthenticated.code:
            self._end()
        # Else this node could not say: it hangs up, and another one may.

    def _refused(self, value: Value, reply: d.DeviceReply) -> None:
        if reply.code == NotAuthenticated.code:
            self._end()
        else:
            super()._refused(value, reply)

    def _end(self) -> None:
        """No device may connect with this secret any more: unconfirmed messages may be stored or
        not.
        """
        if self.successor is None or not self.successor.came:
            text = "was told that its device was replaced before the new one came"
            self.history.complaints.append(("Fenced", f"{self.name}: {text}"))
        self._left = 0
        self.forget()
        self.retire()


class Registrar(Client):
    """Makes a fleet of some hubs, and replaces their devices one after the other."""

    def __init__(self, scene: Scene, name: str, devices: list[FleetHub]) -> None:
        """Replace those that these devices take the place of, in this order."""
        super().__init__(scene, name)
        self._devices = list(devices)
        self._has_fleet = self._busy = False

    @property
    def finished(self) -> bool:
        """Whether nothing is under way."""
        return not self._busy

    def ready(self) -> None:
        """Go on with what comes next."""
        self.world.after(self.rhythm(_REPLACE), self._act, self.link)

    def closed(self) -> None:
        """What was asked may or may not have happened: it is asked again."""
        super().closed()
        self._busy = False

    def _act(self, link: object) -> None:
        if link is not self.link or self.link is None or self._busy or self.retired:
            return
        if self.ending or not self._devices:
            return
        self._busy = True
        if self._has_fleet:
            self.ask(f.ReplaceDevice(self._devices[0].hub, 1), self._replaced)
        else:
            self.ask(f.PutFleet(FLEET, FIRST, LAST, Level.PROOF, 1, KEY), self._made)

    def _made(self, reply: m.Reply) -> None:
        self._has_fleet = isinstance(reply, f.FleetChanged)
        self._go_on(reply)

    def _replaced(self, reply: m.Reply) -> None:
        if isinstance(reply, f.DeviceInfo):
            self.world.after(self.world.between(*_HANG), self._devices.pop(0).begin)
        self._go_on(reply)

    def _go_on(self, reply: m.Reply) -> None:
        self._busy = False
        if isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message)
            if isinstance(error, LevelTooLow):
                self._busy = True
                self.ask(n.RaiseLevel(0), self._raised)
                return
            if not error.retryable:
                self.complain("Live", f"a fleet is refused: {reply}")
                return
        self.ready()

    def _raised(self, _: m.Reply) -> None:
        self._busy = False
        self.ready()
