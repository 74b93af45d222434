"""Fuzzers of what a closed broker gives by a proof: messages of devices that sign each frame, and
pages to who shows a token.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from damages import damaged

from rigs.access import be, close_access, give, rule
from rigs.broker_rig import FakeTime, Rig
from rigs.fleets import FLEET_KEY, RING, SYSTEM, answer, fleet_of
from rigs.page_visits import FIGURE, Visits
from rigs.shards import catalog_of
from rigs.tokens import token_of, trust
from weir.access.devices import FrameKeys, Level, derive_secret, frame_keys
from weir.broker.api import events as ev
from weir.broker.api.effects import SignFrames
from weir.broker.api.settings import ShardSettings
from weir.broker.records.security import RoleChanged
from weir.errors import RemoteProtocolError
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.device import DeviceOpcode, DeviceStream
from weir.protocol.proof import Challenge, FrameSigner
from weir.server.config import TlsConfig
from weir.server.network.tls import TlsAcceptor
from weir.server.observability.guard import NodeGuard
from weir.testing.simulator.disk import SimDisk

_FRAMES = 6
_HUBS = range(40, 50)


def _rig(dice: random.Random, **more: Any) -> Rig:
    settings = ShardSettings(secret_bytes=dice.randbytes, **more)
    rig = Rig(SimDisk(random.Random(1)), FakeTime(), settings, 1 << 20)
    rig.connect(1)
    return rig


def fuzz_signers(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Damage proofs of devices that sign their frames, and these frames, and repeat those of other
    connections: the broker stores what was sent before the damage, once, and nothing else.
    """
    rig = _rig(dice, key_ring=RING)
    address = rig.topic(1, "t").addresses[0]
    catalog = catalog_of(rig.shard)
    catalog.fleets.put(fleet_of(Level.SIGNED))
    catalog.access.apply(
        RoleChanged("fleet.locks", ((("publish",), "topic", "default/t", False),), ())
    )
    close_access([rig.shard])
    be(rig.shard, 1, give(catalog.access, "default/boss", admin=True))
    left, session = count, 10
    earlier, meant = [bytes(40)], list[bytes]()
    while left > 0:
        session += 1
        device = _Device(rig, session, dice.choice(_HUBS))
        proof, first = device.prove(), dice.random()
        if first < 0.1:
            sent = dice.choice(earlier)
        elif first < 0.2:
            sent = damaged(dice, proof)
        else:  # what comes with it was not signed
            sent = proof + (d.publish(1, b"unsigned", 0) if first < 0.3 else b"")
        keys = device.sends(sent)
        left -= 1
        if keys is not None:
            assert sent.startswith(proof), f"{sent.hex()} was taken for the proof {proof.hex()}"
            device.stream.expect_signed(keys)
            sizes = range(dice.randrange(1, _FRAMES))
            values = [b"%d %d" % (session, number) for number in sizes]
            frames = device.sign(values)
            left -= len(frames)
            meant += values[: _publish(dice, device, frames, earlier, sent == proof)]
            found["whole"] += 1
        else:
            assert sent != proof, "a device was refused that has proved itself"
            found["refused"] += 1
        earlier.append(proof)
        del earlier[:-50]
        device.end()
        rig.others.clear()
    rows = rig.answer(1, m.Fetch(address, 0, 1 << 30))
    assert isinstance(rows, m.Fetched), rows
    assert rows.next_offset == len(meant), f"{rows.next_offset} are stored of {len(meant)} signed"


def _publish(
    dice: random.Random, device: _Device, frames: list[bytes], earlier: list[bytes], clean: bool
) -> int:
    """Send signed frames, damaged or others; return how many were stored, which are the first. The
    connection is `clean` if nothing else came by it.
    """
    data, drawn = b"".join(frames), dice.random()
    sent = data
    if drawn < 0.5:
        sent = damaged(dice, data)
    elif drawn < 0.6:
        sent = dice.choice(earlier)
    elif drawn < 0.7:  # one is left out, or comes twice, or in another order
        sent = b"".join(dice.choices(frames, k=len(frames)))
    earlier.append(data)
    whole, at = 0, 0
    for frame in frames:  # those before the first byte that differs
        at += len(frame)
        if sent[:at] != data[:at]:
            break
        whole += 1
    cut = dice.randrange(len(sent) + 1)
    stored = device.publishes(sent[:cut]) + device.publishes(sent[cut:])
    assert stored <= whole, f"{stored} frames of {sent.hex()} were taken, and {whole} were meant"
    assert sent != data or stored == len(frames) or not clean, "what was signed was refused"
    return stored


class _Device:
    """A device of a fleet that signs, at a broker whose host reads its frames by `stream`."""

    def __init__(self, rig: Rig, session: int, hub: int) -> None:
        """Come in, and be asked for a proof."""
        self.stream = DeviceStream()
        self._rig, self._session, self._hub = rig, session, hub
        self._secret = derive_secret(FLEET_KEY, SYSTEM, hub, 0)
        self._signer: FrameSigner | None = None
        self._ended = False
        rig.device(session, d.hello(hub, session, "t"))
        rig.settle()
        asked = rig.device_replies[session].pop().content
        assert isinstance(asked, Challenge), asked
        self._asked = asked

    def prove(self) -> bytes:
        """Return the frame by which it proves itself."""
        frame, claim = answer(
            self._asked, self._secret, hub=self._hub, boot=self._session, level=Level.SIGNED
        )
        self._signer = FrameSigner(frame_keys(self._secret, claim).of_device)
        return frame

    def sign(self, values: list[bytes]) -> list[bytes]:
        """Return frames that publish values, each signed."""
        assert self._signer is not None
        return [self._signer.sign(d.publish(1, one, at)) for at, one in enumerate(values)]

    def sends(self, data: bytes) -> FrameKeys | None:
        """Let the broker have bytes; return by what it expects frames to be signed from now on."""
        self._come(data)
        signs = [one.keys for one in self._rig.others if isinstance(one, SignFrames)]
        self._rig.device_replies[self._session].clear()
        return signs[0] if signs and not self._ended else None

    def publishes(self, data: bytes) -> int:
        """Let the broker have bytes; return how many messages it confirms."""
        self._come(data)
        replies = self._rig.device_replies[self._session]
        confirmed = [
            one for one in replies if one.opcode == DeviceOpcode.PUBLISH_SEQUENCED and not one.code
        ]
        replies.clear()
        return len(confirmed)

    def end(self) -> None:
        """Let the connection end."""
        rig = self._rig
        rig.handle(ev.Closed(self._session))
        rig.forget(self._session)
        del rig.device_replies[self._session]

    def _come(self, data: bytes) -> None:
        if self._ended:
            return
        try:
            frames = self.stream.receive(data)
        except RemoteProtocolError:
            self._ended = True  # as a host does: nothing of this read is served
            return
        self._rig.handle(ev.Received(self._session, [*frames]))
        self._rig.settle()


def fuzz_pages(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Damage requests for pages of a closed set: what is not for everybody is shown by the token of
    a user who may see it, whole, and each answer is one.
    """
    rig = _rig(dice)
    rig.answer(1, trust())
    access = catalog_of(rig.shard).access
    give(access, "default/ann", rule("list", "system", ""))
    give(access, "default/bob", rule("list", "topic", "", True))
    close_access([rig.shard])
    now = rig.time.wall_ms() / 1_000
    right, other = token_of(now, "ann"), token_of(now, "bob")
    tls = cast(TlsAcceptor, SimpleNamespace(serving=None))
    asking = Visits(NodeGuard(rig.shard, tls, TlsConfig(), access))
    seeds = [
        _request(method, path, token)
        for method in ("GET", "HEAD")
        for path in ("/metrics", "/healthz", "/nothing", "/metrics?a=b")
        for token in (right, right, other, b"")
    ]

    async def work() -> None:
        for _ in range(count):
            meant = dice.choice(seeds)
            sent = damaged(dice, meant) if dice.random() < 0.8 else meant
            told = await asking.ask(sent, _loopback(dice))
            # The last characters of base64 have bits that say nothing.
            is_right = right[:-2] in sent
            assert FIGURE not in told or is_right, f"shown by {sent!r}"
            assert not told or told.startswith(b"HTTP/1.1 "), (sent, told)
            if sent == meant and b"GET /metrics" in sent:
                assert (FIGURE in told) == is_right, (sent, told)
            found["whole" if told.startswith(b"HTTP/1.1 200") else "refused"] += 1

    asyncio.run(work())


def _request(method: str, path: str, token: bytes) -> bytes:
    shown = b"Authorization: Bearer %s\r\n" % token if token else b""
    return f"{method} {path} HTTP/1.1\r\nHost: node\r\n".encode() + shown + b"\r\n"


def _loopback(dice: random.Random) -> str:
    """Return an address where nobody reads along, of somebody who has not failed before."""
    return "127." + ".".join(str(dice.randrange(1, 255)) for _ in range(3))
