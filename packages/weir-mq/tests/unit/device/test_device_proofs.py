"""A device of a fleet against brokers that are its own, and some that are not."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from rigs.device_broker import DeviceBroker
from weir.access.devices import Level, derive_secret, frame_keys, prove_broker, prove_device
from weir.device import Client, DeviceSecret
from weir.errors import BadRequest, Disconnected, NotAuthenticated, ProofNeeded
from weir.protocol import device as wire
from weir.protocol.device import DeviceHello, DevicePublishes, DeviceStream
from weir.protocol.proof import Challenge, DeviceProof, Proven, ReplySigner

SECRET = derive_secret(b"f" * 32, 77, 42, 0)


class ProvingBroker(DeviceBroker):
    """One thread; asks for a proof, and can be made to lie at each step."""

    def __init__(self) -> None:
        self.level = int(Level.PROOF)
        self.secret = SECRET
        self.asks = True
        self.refuses = 0
        #: What is done with bytes that go out behind the reply to a proof.
        self.spoils: Callable[[bytes], bytes] = lambda data: data
        self.values: list[bytes] = []
        self.proofs: list[DeviceProof] = []
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        stream, hello = DeviceStream(), DeviceHello(0, 0, 0, 0, "")
        signer: ReplySigner | None = None
        asked = Challenge(77, self.level, b"b" * 16)
        for data in self.pieces(connection):
            for request in stream.receive(data):
                match request:
                    case DeviceHello():
                        hello = request
                        reply = wire.encode_challenge(0, asked)
                        connection.sendall(reply if self.asks else wire.encode_welcome(0, 0, 77))
                    case DeviceProof():
                        self.proofs.append(request)
                        claim = request.claim(asked, hello)
                        if request.proof != prove_device(SECRET, claim) or self.refuses:
                            code = self.refuses or NotAuthenticated.code
                            connection.sendall(wire.encode_code(12, 0, code))
                            return
                        if request.level >= Level.SIGNED:
                            keys = frame_keys(SECRET, claim)
                            stream.expect_signed(keys)
                            signer = ReplySigner(keys.of_broker, None)
                        proven = wire.encode_proven(0, Proven(77, prove_broker(self.secret, claim)))
                        connection.sendall(proven if signer is None else signer.sign(proven))
                    case DevicePublishes():
                        self.values += request.values
                        reply = wire.encode_confirms(
                            request.sns, request.sequences, request.codes, request.sequences
                        )
                        reply = reply if signer is None else signer.sign(reply)
                        connection.sendall(self.spoils(reply))


@pytest.fixture
def broker() -> Iterator[ProvingBroker]:
    made = ProvingBroker()
    yield made
    made.end()


def connect(broker: ProvingBroker, secret: DeviceSecret | None, boot: int = 1) -> Client:
    return Client("127.0.0.1", broker.port, 42, boot, "locks", timeout=1.0, secret=secret)


@pytest.mark.parametrize("level", [Level.PROOF, Level.SIGNED])
@pytest.mark.parametrize("signed", [False, True])
def test_a_device_proves_itself_and_publishes(
    broker: ProvingBroker, level: Level, signed: bool
) -> None:
    broker.level = level
    with connect(broker, DeviceSecret(SECRET, signed=signed)) as client:
        client.send_many([b"a", b"b", b"c"])
    assert broker.values == [b"a", b"b", b"c"]
    (proof,) = broker.proofs
    assert proof.level == (Level.SIGNED if signed else level)
    assert any(proof.nonce)


def test_each_connection_has_a_nonce_of_its_own(broker: ProvingBroker) -> None:
    for _ in range(3):
        connect(broker, DeviceSecret(SECRET)).close()
    assert len({proof.nonce for proof in broker.proofs}) == 3


def test_what_was_flashed_is_said(broker: ProvingBroker) -> None:
    with pytest.raises(NotAuthenticated, match="generation"):
        connect(broker, DeviceSecret(derive_secret(b"f" * 32, 77, 42, 9), 9, 5))
    (proof,) = broker.proofs
    assert (proof.generation, proof.key_version) == (9, 5)


def test_without_a_secret_the_user_is_told(broker: ProvingBroker) -> None:
    with pytest.raises(ProofNeeded, match="secret"):
        connect(broker, None)


def test_a_broker_that_asks_for_nothing_is_left(broker: ProvingBroker) -> None:
    """Somebody who answers in its place would hear all that the device says."""
    broker.asks = False
    with pytest.raises(NotAuthenticated, match="no proof"):
        connect(broker, DeviceSecret(SECRET))
    connect(broker, None).close()


def test_a_broker_without_the_secret_is_left(broker: ProvingBroker) -> None:
    broker.secret = b"x" * 32
    with pytest.raises(NotAuthenticated, match="not its broker"):
        connect(broker, DeviceSecret(SECRET))
    assert broker.values == []


def test_a_refusal_that_may_pass_is_tried_again(broker: ProvingBroker) -> None:
    broker.refuses = 17
    with pytest.raises(Disconnected, match="1 s"):
        connect(broker, DeviceSecret(SECRET))
    assert len(broker.proofs) > 1


def test_a_new_connection_proves_anew_before_it_signs(broker: ProvingBroker) -> None:
    broker.level = Level.SIGNED
    with connect(broker, DeviceSecret(SECRET)) as client:
        client.publish_sequenced(b"a")
        client.close()
        client.publish_sequenced(b"b")
    assert broker.values == [b"a", b"b"]
    assert len(broker.proofs) == 2


@pytest.mark.parametrize(
    "spoils",
    [
        lambda reply: wire.encode_confirm(0, 0, 0, 0),  # forged, unsigned
        lambda reply: reply[:20] + bytes([reply[20] ^ 1]) + reply[21:-1] + bytes([reply[-1] ^ 1]),
    ],
)
def test_a_forged_confirm_is_none(broker: ProvingBroker, spoils: Callable[[bytes], bytes]) -> None:
    broker.level = Level.SIGNED
    with connect(broker, DeviceSecret(SECRET)) as client:
        broker.spoils = spoils
        with pytest.raises(Disconnected):
            client.publish_sequenced(b"a")


def test_a_repeated_confirm_is_none(broker: ProvingBroker) -> None:
    """The connection ends, and on the next one all is as it should be."""
    broker.level = Level.SIGNED
    broker.spoils = lambda reply: reply + reply
    with connect(broker, DeviceSecret(SECRET)) as client, pytest.raises(Disconnected):
        client.send_many([b"a", b"b"], window=1)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(BadRequest, match="32 bytes"):
        DeviceSecret(bytes(size))


def test_a_secret_is_not_shown() -> None:
    assert "s" * 8 not in repr(DeviceSecret(b"s" * 32))
