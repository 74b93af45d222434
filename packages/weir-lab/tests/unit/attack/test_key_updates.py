"""Records of a client that are made by hand: OpenSSL takes each of them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from weir.tls.authority import begun
from weir.tls.identity import parse_identity
from weir_lab.attack.key_updates import ClientRecords, secret_in


@pytest.mark.parametrize("updates", [0, 1, 300])
def test_key_updates_are_taken_and_data_behind_them(tmp_path: Path, updates: int) -> None:
    with begun(tmp_path / "ca", 10) as ca:
        issued = ca.issue(parse_identity("weir://a/0/node/1"), ["localhost"], 10)
        context = ssl.create_default_context(cafile=str(ca.bundle))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(issued.certificate, issued.key)
    context.keylog_filename = str(tmp_path / "keys")
    down, up = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(down, up, server_hostname="localhost")
    server = serving.wrap_bio(up, down, server_side=True)
    for one in (client, server, client, server):
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            continue
    suite = client.cipher()
    assert suite is not None
    records = ClientRecords(suite[0], secret_in(tmp_path / "keys"))
    up.write(b"".join(records.update() for _ in range(updates)))
    if updates:
        with pytest.raises(ssl.SSLWantReadError):
            server.read(1)
    up.write(records.data(b"hello") + records.data(b" again"))
    assert server.read(5) + server.read(6) == b"hello again"
    up.write(records.update()[:-1] + b"\0")
    with pytest.raises(ssl.SSLError, match=r"(?i)bad.record.mac"):
        server.read(1)
