"""The files of TLS: what cannot be served is said before anybody is served with it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from rigs.certificates import TestCa
from weir.tls.files import BadCertificate, ClientFiles, ServerFiles, client_context, server_tls


def test_a_half_file_is_refused_at_whatever_byte_it_ends(ca: TestCa, tmp_path: Path) -> None:
    good = ca.files_of(ca.folder / "issued" / "node-1.pem")
    for field in ("certificate", "key", "trust"):
        whole = Path(getattr(good, field)).read_bytes()
        half = tmp_path / f"{field}.pem"
        for end in range(0, len(whole) - 1, 41):
            half.write_bytes(whole[:end])
            with pytest.raises(BadCertificate):
                server_tls(good._replace(**{field: str(half)}))
        half.write_bytes(whole)
        server_tls(good._replace(**{field: str(half)}))


@pytest.mark.parametrize(("days_ahead", "words"), [(-20.0, "expired"), (20.0, "not yet valid")])
def test_dates_that_are_not_now_are_refused(ca: TestCa, days_ahead: float, words: str) -> None:
    one = ca.issue(f"node/{200 + int(days_ahead)}", days_ahead=days_ahead)
    with pytest.raises(BadCertificate, match=words):
        server_tls(ca.files(one))


def test_another_ca_another_key_and_a_missing_file_are_named(ca: TestCa, tmp_path: Path) -> None:
    other = TestCa(tmp_path / "other")
    foreign = other.issue("node/1")
    good = ca.files_of(ca.folder / "issued" / "node-1.pem")
    with pytest.raises(BadCertificate, match="does not verify against"):
        server_tls(good._replace(trust=other.bundle))
    with pytest.raises(BadCertificate, match="key of another certificate"):
        server_tls(good._replace(key=str(foreign.key)))
    with pytest.raises(BadCertificate, match="No such file"):
        server_tls(good._replace(key=str(tmp_path / "none.key")))
    with pytest.raises(BadCertificate, match="without its key"):
        server_tls(ServerFiles(good.certificate, "", good.trust))


def test_a_key_with_a_password_is_not_asked_for_at_a_terminal(ca: TestCa, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    good = ca.files_of(ca.folder / "issued" / "node-1.pem")
    key = serialization.load_pem_private_key(Path(good.key).read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(BadCertificate, match="has a password"):
        server_tls(good._replace(key=str(locked)))


def test_what_is_revoked_is_read_however_it_is_written(ca: TestCa, tmp_path: Path) -> None:
    file = tmp_path / "revoked.txt"
    good = ca.files_of(ca.folder / "issued" / "node-1.pem")._replace(revoked=str(file))
    assert server_tls(good).revoked == frozenset(), "there is none yet"
    file.write_text("# who left\n00AB:CD  # anna\n\n77\n", encoding="utf-8")
    assert server_tls(good).revoked == {"abcd", "77"}
    file.write_text("77\nanna\n", encoding="utf-8")
    with pytest.raises(BadCertificate, match="line 2"):
        server_tls(good)


def test_no_tickets_no_old_versions_and_no_file_of_keys(
    ca: TestCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    good = ca.files_of(ca.folder / "issued" / "node-1.pem")
    serving = server_tls(good, "1.2")
    client = client_context(ca.client())
    for context in (serving.context, serving.dialling, client):
        assert context.keylog_filename is None
        assert context.options & ssl.OP_NO_RENEGOTIATION
    assert serving.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert serving.dialling.minimum_version is ssl.TLSVersion.TLSv1_3, "links are never older"
    assert serving.dialling.verify_mode is ssl.CERT_REQUIRED
    assert serving.context.num_tickets == 0
    assert client.check_hostname
    assert client.verify_mode is ssl.CERT_REQUIRED
    assert not (tmp_path / "keys").exists()


def test_a_client_needs_both_or_neither(tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match="without its key"):
        client_context(ClientFiles(certificate=str(tmp_path / "me.pem")))
    with pytest.raises(BadCertificate, match="cannot be read"):
        client_context(ClientFiles(ca=str(tmp_path / "ca.pem")))
