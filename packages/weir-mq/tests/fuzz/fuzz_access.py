"""Random and damaged input before and behind authentication: logins, tokens, signed frames, pages,
TLS, sessions of a closed broker to which nobody may get in by it, and sessions behind a login, to
which a user may do no more by it than its rules say.

    python packages/weir-mq/tests/fuzz/fuzz_access.py --seeds 1            # 10,000 inputs each
    python packages/weir-mq/tests/fuzz/fuzz_access.py --seed 7 --seeds 100 --only signed

Prints one JSON object: inputs of each fuzzer and of all, crashes, and by how many KiB the memory
grew behind the first tenth. The first one that breaks a promise is printed, with its seed, and ends
with 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import sys
import tempfile
import traceback
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

# Beside this file, as a script finds it.
from damages import damaged  # noqa: E402
from fuzz_dialects import READERS, Dice  # noqa: E402
from fuzz_guarded import fuzz_pages, fuzz_signers  # noqa: E402

from rigs.access import be, close_access, give, rule  # noqa: E402
from rigs.broker_rig import FakeTime, Rig  # noqa: E402
from rigs.certificates import TestCa  # noqa: E402
from rigs.shards import catalog_of  # noqa: E402
from rigs.tls_wires import End, ends  # noqa: E402
from weir.access.credentials import derive_key, make_verifier  # noqa: E402
from weir.access.devices import FrameKeys  # noqa: E402
from weir.access.scram import ScramClient, ScramProof, ScramServer, parse_first  # noqa: E402
from weir.access.signatures import PrivateKey  # noqa: E402
from weir.access.tokens import (  # noqa: E402
    Claims,
    Issuer,
    issue_token,
    read_jwks,
    write_jwks,
)
from weir.broker.api import events as ev  # noqa: E402
from weir.broker.api.settings import ShardSettings  # noqa: E402
from weir.errors import BadRequest, NotAuthenticated, RemoteProtocolError  # noqa: E402
from weir.model.topic import RESERVED_NAMESPACE  # noqa: E402
from weir.protocol import device as d  # noqa: E402
from weir.protocol.client import messages as m  # noqa: E402
from weir.protocol.client.access import LoginStep  # noqa: E402
from weir.protocol.client.codec import ClientStream, encode_request  # noqa: E402
from weir.protocol.device import Delivery, DeviceStream  # noqa: E402
from weir.protocol.proof import FrameSigner  # noqa: E402
from weir.testing.simulator.disk import SimDisk  # noqa: E402
from weir.tls.files import client_context, server_tls  # noqa: E402

#: Inputs of each fuzzer that a seed stands for.
OF_A_SEED = 10_000
_PASSWORD, _NONCE = "a password", "n" * 24
_SALT = bytes(range(16))
_KEY = derive_key(_PASSWORD, _SALT, 4_096)
_NOW = 1_800_000_000.0
#: What the topic holds that nobody may read.
_HIDDEN = b"a value that is hidden"
_KEYS = FrameKeys(b"d" * 32, b"b" * 32)

Fuzzer = Callable[[random.Random, int, Counter[str]], None]


def fuzz_logins(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Damage either message of a login by a right password: it succeeds only as it was meant."""
    verifier = make_verifier(_PASSWORD, _SALT, 4_096)
    client = ScramClient("ann", _NONCE)
    for _ in range(count):
        breaks_first, breaks_last = dice.random() < 0.3, dice.random() < 0.7
        first = damaged(dice, client.first) if breaks_first else client.first
        last = b""
        try:
            server = ScramServer(parse_first(first), verifier, "s" * 24)
            challenge = client.challenged(server.challenge)
            last = ScramProof(challenge, _KEY).final
            sent = damaged(dice, last) if breaks_last else last
            server.finish(sent)
        except (NotAuthenticated, RemoteProtocolError):
            found["refused"] += 1
            continue
        assert (first, sent) == (client.first, last) or (
            parse_first(first) == parse_first(client.first) and _same(sent, last)
        ), f"a damaged login was taken: {first!r} {sent!r}"
        found["whole"] += 1


def _same(sent: bytes, last: bytes) -> bool:
    """Return whether a proof differs in nothing but how base64 ends."""
    head, _, proof = last.rpartition(b"p=")
    return sent.startswith(head) and b64encode(proof)[:50] == b64encode(sent[len(head) + 2 :])[:50]


def fuzz_challenges(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Damage what a broker says in a login: a client takes no proof but the right one."""
    client = ScramClient("ann", _NONCE)
    verifier = make_verifier(_PASSWORD, _SALT, 4_096)
    for _ in range(count):
        server = ScramServer(parse_first(client.first), verifier, "s" * 24)
        is_first = dice.random() < 0.5
        try:
            said = damaged(dice, server.challenge) if is_first else server.challenge
            challenge = client.challenged(said)
            if not challenge.fits(_KEY):
                found["refused"] += 1
                continue
            proof = ScramProof(challenge, _KEY)
            right = server.finish(proof.final) if said == server.challenge else b"v=AAAA"
            answer = right if is_first else damaged(dice, right)
            proof.check(answer)
        except (NotAuthenticated, RemoteProtocolError):
            found["refused"] += 1
            continue
        assert answer[:44] == right[:44], f"a broker's proof was taken: {answer!r}"
        found["whole"] += 1


def fuzz_signed(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Damage a stream of signed frames: no more is taken than what comes before the damage."""
    for _ in range(count):
        signer, stream = FrameSigner(_KEYS.of_device), DeviceStream()
        stream.expect_signed(_KEYS)
        frames = [signer.sign(d.publish(1, b"%d" % number, number)) for number in range(4)]
        data = b"".join(frames)
        sent = damaged(dice, data) if dice.random() < 0.9 else data
        whole, at = 0, 0
        for frame in frames:  # those before the first byte that differs
            at += len(frame)
            if sent[:at] != data[:at]:
                break
            whole += 1
        taken: list[bytes] = []
        try:
            cut = dice.randrange(len(sent) + 1)
            for read in (sent[:cut], sent[cut:]):
                for request in stream.receive(read):
                    assert isinstance(request, d.DevicePublishes)
                    taken += request.values
            found["whole"] += 1
        except RemoteProtocolError:
            found["refused"] += 1
        assert taken == [b"%d" % number for number in range(len(taken))]
        assert len(taken) <= whole, f"{len(taken)} frames of {sent.hex()} were taken"


def fuzz_sessions(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Send damaged requests, logins, hellos and proofs to a closed broker, several a connection:
    nobody is welcome, and nothing is changed.
    """
    settings = ShardSettings(secret_bytes=lambda size: b"s" * size)
    rig = Rig(SimDisk(random.Random(1)), FakeTime(), settings, 1 << 20)
    rig.connect(1)
    rig.answer(1, m.CreateTopic("t"))
    rig.handle(ev.Closed(1))
    close_access([rig.shard])
    clients, devices = (
        Dice(dice.getrandbits(32), READERS[name][1], READERS[name][2], READERS[name][3],
             name == "device")
        for name in ("client", "device")
    )  # fmt: skip
    left, session = count, 10
    while left > 0:
        session += 1
        is_device = dice.random() < 0.4
        rig.replies[session] = []
        if is_device:
            rig.expects_device(session)
        rig.handle(ev.Opened(session))
        rig.handle(ev.Secured(session))
        stream: Any = DeviceStream() if is_device else ClientStream()
        for _ in range(dice.randrange(1, 12)):
            left -= 1
            try:
                frames = stream.receive((devices if is_device else clients).roll())
                rig.handle(ev.Received(session, [*frames]))
            except RemoteProtocolError:
                found["broken"] += 1
                break
            rig.settle()
        for _, reply in rig.replies.pop(session, ()):
            assert isinstance(reply, m.Refusal | LoginStep | m.Pong), reply
            assert not (isinstance(reply, LoginStep) and reply.done), reply
            found["refused"] += 1
        for one in rig.device_replies.pop(session, ()):
            assert one.code, one
            found["refused"] += 1
        rig.handle(ev.Closed(session))
        rig.forget(session)
        rig.others.clear()
    topics = rig.shard.topics.catalog.topics("")
    assert [one.name for one in topics if one.namespace != RESERVED_NAMESPACE] == ["t"]


def fuzz_insiders(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Send damaged requests in sessions of a user who may publish to one topic, several a session:
    nothing of another topic comes back, and nothing is changed but that topic.
    """
    inside = _Inside()
    clients = Dice(dice.getrandbits(32), inside.frames, 4, "little", False)
    devices = Dice(dice.getrandbits(32), inside.device_frames, 1, "big", True)
    rig, left, session = inside.rig, count, 10
    while left > 0:
        session += 1
        is_device = dice.random() < 0.4
        inside.log_in(session, is_device)
        stream: Any = DeviceStream() if is_device else ClientStream()
        frames = inside.device_frames if is_device else inside.frames
        for _ in range(dice.randrange(1, 12)):
            left -= 1
            # What is whole must be refused as well, and what it may do is done.
            data = dice.choice(frames)
            if dice.random() < 0.7:
                data = (devices if is_device else clients).roll()
            try:
                rig.handle(ev.Received(session, [*stream.receive(data)]))
            except RemoteProtocolError:
                found["broken"] += 1
                break
            rig.settle()
        for _, reply in rig.replies.pop(session, ()):
            found["refused" if isinstance(reply, m.Refusal) else "whole"] += 1
            inside.check(reply)
        for one in rig.device_replies.pop(session, ()):
            found["refused" if one.code else "whole"] += 1
            assert not isinstance(one.content, Delivery), one
        rig.handle(ev.Closed(session))
        rig.forget(session)
        rig.others.clear()
    inside.check_all()


class _Inside:
    """A closed broker with a topic that a user may publish to, one that it may do nothing with, and
    an administrator.
    """

    def __init__(self) -> None:
        settings = ShardSettings(secret_bytes=lambda size: b"s" * size)
        self.rig = rig = Rig(SimDisk(random.Random(1)), FakeTime(), settings, 1 << 20)
        rig.connect(1)
        own, other = rig.topic(1, "own"), rig.topic(1, "other")
        grant = rig.answer(1, m.OpenProducer())
        rig.answer(1, rig.batch(other, grant, 0, _HIDDEN))
        close_access([rig.shard])
        self._access = catalog_of(rig.shard).access
        right = rule("publish", "topic", "default/own")
        self._principal = give(self._access, "default/ann", right)
        be(rig.shard, 1, give(self._access, "default/boss", admin=True))
        self._other = other
        self._before = self._state()
        self.log_in(2)
        mine = rig.answer(2, m.OpenProducer())
        asked = [
            m.CreateTopic("new"), m.ListTopics(), m.OpenProducer(),
            *(m.DescribeTopic(one.name) for one in (own, other)),
            m.ListOffsets(groups=[one.addresses[0].group for one in (own, other)]),
            *(m.Fetch(one.addresses[0], 0, 1 << 16) for one in (own, other)),
            *(m.OpenCluster(one.addresses[0], "crew", "shared") for one in (own, other)),
            *(rig.batch(one, mine, number, b"%d" % number) for one in (own, other)
              for number in range(3)),
        ]  # fmt: skip
        self.frames = [b"".join(encode_request(one, 7)) for one in asked]
        self.frames += READERS["client"][1]
        self.device_frames = [
            *(d.subscribe(2, "crew", topic, 0, 5_000, 4) for topic in ("own", "other")),
            *(d.publish(number, _HIDDEN[:4], number) for number in range(3)),
            d.pull(3, 9, 0), *READERS["device"][1],
        ]  # fmt: skip
        rig.handle(ev.Closed(2))

    def log_in(self, session: int, is_device: bool = False) -> None:
        """Open a session of the user, or of a device that has its rights."""
        rig = self.rig
        rig.replies[session] = []
        if is_device:
            rig.expects_device(session)
        rig.handle(ev.Opened(session))
        be(rig.shard, session, self._principal)
        if is_device:
            rig.device(session, d.hello(session, 1, "own"))
            assert rig.device_replies[session].pop().code == 0
            return
        assert isinstance(self.rig.answer(session, m.Hello("test")), m.Welcome)

    def _state(self) -> tuple[object, ...]:
        """Return what the user may not change."""
        topics = self.rig.shard.topics.catalog.topics("")
        (other,) = [one for one in topics if one.name == "other"]
        fetched = self.rig.answer(1, m.Fetch(self._other.addresses[0], 0, 1 << 16))
        assert isinstance(fetched, m.Fetched), fetched
        names = [one.name for one in topics if one.namespace != RESERVED_NAMESPACE]
        return names, other, self._access.version, self._access.mode, fetched.next_offset

    def check(self, reply: m.Reply) -> None:
        """Raise `AssertionError` for a reply that tells of the other topic."""
        assert _HIDDEN not in repr(reply).encode(), reply
        told = [reply] if isinstance(reply, m.TopicInfo) else []
        told += reply.topics if isinstance(reply, m.TopicList) else []
        told += reply.topics if isinstance(reply, m.OffsetList) else []
        assert {one.name for one in told} <= {"own"}, reply
        assert not isinstance(reply, m.Fetched | m.FetchedChunks), reply

    def check_all(self) -> None:
        """Raise `AssertionError` if the user has changed what it may not."""
        assert self._state() == self._before, (self._state(), self._before)


def fuzz_tokens(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Damage tokens, and the keys that an issuer publishes: a token is taken only as it was signed,
    and keys are read or refused.
    """
    key = PrivateKey(_pem(dice))
    issuer = Issuer("weir", "set-1", [key.public("one")])
    claims = Claims("weir", "shop/ann", ("set-1",), _NOW + 600, issued=_NOW)
    token, jwks = issue_token(key, "one", claims), write_jwks(issuer.keys)
    meant = issuer.verify(token, _NOW)
    for _ in range(count):
        try:
            if dice.random() < 0.5:
                read_jwks(damaged(dice, jwks))
            else:
                sent = damaged(dice, token) if dice.random() < 0.9 else token
                assert issuer.verify(sent, _NOW) == meant, f"a damaged token was taken: {sent!r}"
            found["whole"] += 1
        except (NotAuthenticated, BadRequest):
            found["refused"] += 1


def _pem(dice: random.Random) -> bytes:
    return ed25519.Ed25519PrivateKey.from_private_bytes(dice.randbytes(32)).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def fuzz_tls(dice: random.Random, count: int, found: Counter[str]) -> None:
    """Damage what a client writes before, in and behind a handshake: the connection ends, and what
    comes out above is what was said, up to the damage.
    """
    with tempfile.TemporaryDirectory() as name:
        ca = TestCa(Path(name))
        files = ca.files(ca.issue("node/1"))
        serving, context = server_tls(files), client_context(ca.client())
        for _ in range(count):
            _one_of_tls(dice, *ends(serving, context), found)


def _one_of_tls(dice: random.Random, server: End, client: End, found: Counter[str]) -> None:
    at, said = dice.randrange(8), b""
    for turn in range(7):
        if turn == 2:  # its handshake is done, unless something was damaged
            client.tls.write(said := dice.randbytes(dice.randrange(1, 100)))
        up = client.wire.take()
        if turn == at:
            up = damaged(dice, up or b"\x16\x03\x01\x00\x05")
        if up and not server.is_over:
            server.tls.data_received(up)
        if (down := server.wire.take()) and not client.is_over:
            client.tls.data_received(down)
    assert said.startswith(server.heard.data), (said, server.heard.data)
    assert at < 7 or server.heard.data == said
    found["whole" if server.heard.data else "refused"] += 1
    server.tls.connection_lost(None)
    client.tls.connection_lost(None)
    assert server.host.bytes == client.host.bytes == 0, "something is charged for good"


#: Name: the fuzzer, and by how much fewer inputs it gets, because one of them takes longer.
FUZZERS: dict[str, tuple[Fuzzer, int]] = {
    "logins": (fuzz_logins, 1),
    "challenges": (fuzz_challenges, 1),
    "signed": (fuzz_signed, 1),
    "signers": (fuzz_signers, 50),
    "tokens": (fuzz_tokens, 10),
    "pages": (fuzz_pages, 40),
    "sessions": (fuzz_sessions, 4),
    "insiders": (fuzz_insiders, 10),
    "tls": (fuzz_tls, 50),
}


def _peak_kib() -> int:
    """Return the most memory that this process has had, in KiB.

    `getrusage` would say no less than what the process had that started this one.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.M)
    assert found is not None, status
    return int(found[1])


def main() -> int:
    """Fuzz, print what came of it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=OF_A_SEED, help="of each fuzzer, a seed")
    parser.add_argument("--only", default="", choices=["", *FUZZERS])
    chosen = parser.parse_args()
    names = [chosen.only] if chosen.only else [*FUZZERS]
    counts: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    warm = 0
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        for name in names:
            fuzzer, cost = FUZZERS[name]
            dice = random.Random(f"{name} {seed}")
            count = max(chosen.inputs // cost, 1)
            found: Counter[str] = Counter()
            try:
                fuzzer(dice, count, found)
            except Exception:
                traceback.print_exc()
                print(json.dumps({"fuzzer": name, "seed": seed, "crashes": 1}))
                return 1
            gc.collect()  # brokers refer to themselves: else what nobody uses counts as growth
            counts[name] += count
            outcomes.update({f"{name} {kind}": times for kind, times in found.items()})
        if seed - chosen.seed == chosen.seeds // 10:
            warm = _peak_kib()
    grown = _peak_kib() - warm
    print(json.dumps({
        "seeds": chosen.seeds, "inputs": sum(counts.values()), "by_fuzzer": counts,
        "outcomes": outcomes, "crashes": 0, "rss_grown_kib": grown,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
