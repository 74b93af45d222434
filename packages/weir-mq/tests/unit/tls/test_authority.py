"""The CA of a set: what it issues verifies, and being killed at any write leaves it usable."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from weir.tls import authority
from weir.tls.authority import Authority, BadAuthority, begun, opened
from weir.tls.files import BadCertificate, ServerFiles, server_tls
from weir.tls.identity import node, parse_identity

SYSTEM = 0xABC


def files(ca: Authority, name: str = "node-1") -> ServerFiles:
    one = ca.find(name)
    return ServerFiles(str(one.certificate), str(one.key), str(ca.bundle))


def test_what_is_issued_serves_and_keys_are_secret(tmp_path: Path) -> None:
    with begun(tmp_path, SYSTEM) as ca:
        one = ca.issue(node(SYSTEM, 1), ["broker1", "10.0.0.1", "::1"])
        assert one.hosts == ("broker1", "10.0.0.1", "::1")
        serving = server_tls(files(ca))
        assert serving.own.identity == one.identity
        assert serving.own.serial == one.serial
        for key in (one.key, tmp_path / "ca-1.key"):
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
        anna = ca.issue(parse_identity("weir://abc/0/user/default/anna"))
        with pytest.raises(BadCertificate, match="purpose"):
            server_tls(files(ca, anna.name))  # a client cannot be a broker
        assert [found.name for found in ca.issued()] == ["node-1", "user-anna@default"]


@pytest.mark.parametrize("name", ["fstab", "ca.pem", "ca-7.key"])
def test_a_folder_with_files_of_others_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(BadAuthority, match=rf"other files \({name}\)"), begun(tmp_path, SYSTEM):
        pass
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "theirs"


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadAuthority, match="holds no CA"), opened(tmp_path):
        pass
    with begun(tmp_path, SYSTEM) as ca:
        ca.issue(node(SYSTEM, 1), ["broker1"])
        with pytest.raises(BadAuthority, match="renew"):
            ca.issue(node(SYSTEM, 1), ["broker1"])
        with pytest.raises(BadAuthority, match="another system"):
            ca.issue(node(SYSTEM + 1, 2), ["broker2"])
        with pytest.raises(BadAuthority, match="--host"):
            ca.issue(node(SYSTEM, 2))
        with pytest.raises(BadAuthority, match="no name of a machine"):
            ca.issue(node(SYSTEM, 2), ["x" * 80])
        with pytest.raises(BadAuthority, match="--days"):
            ca.issue(node(SYSTEM, 2), ["broker2"], 0)
        with pytest.raises(BadAuthority, match="node-1"):
            ca.find("node-7")
        with pytest.raises(BadAuthority, match="another command"), opened(tmp_path):
            pass
    with pytest.raises(BadAuthority, match="already"), begun(tmp_path, SYSTEM):
        pass


def test_a_certificate_lasts_no_longer_than_its_ca(tmp_path: Path) -> None:
    with begun(tmp_path, SYSTEM, days=5) as ca:
        one = ca.issue(node(SYSTEM, 1), ["broker1"], 100)
        assert one.ends <= datetime.now(UTC) + timedelta(days=5)


def test_revoking_takes_those_that_were_renewed_too(tmp_path: Path) -> None:
    with begun(tmp_path, SYSTEM) as ca:
        first = ca.issue(node(SYSTEM, 1), ["broker1"])
        second = ca.renew("node-1")
        assert second.serial != first.serial
        assert second.hosts == first.hosts
        other = ca.issue(node(SYSTEM, 11), ["broker11"])
        ca.renew("node-11")
        assert ca.revoke(second.serial).revoked
        assert ca.revoked() == {first.serial, second.serial}
        assert other.serial not in ca.revoked()
        revoked = ServerFiles(*files(ca, "node-11")[:3], str(tmp_path / "revoked.txt"))
        assert server_tls(revoked).revoked == {first.serial, second.serial}
        assert ca.issue(node(SYSTEM, 1), ["broker1"]).serial not in ca.revoked()


def bundled(ca: Authority) -> int:
    """Return how many CAs the bundle has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(str(ca.bundle))
    return len(context.get_ca_certs())


def test_a_ca_is_replaced_in_three_steps_in_which_all_stays_valid(tmp_path: Path) -> None:
    with begun(tmp_path, SYSTEM) as ca:
        ca.issue(node(SYSTEM, 1), ["broker1"])
        for step in ("switch", "finish"):
            if step == "switch":
                with pytest.raises(BadAuthority, match="prepare"):
                    ca.rotate("switch")
        ca.rotate("prepare")
        ca.rotate("prepare")
        assert bundled(ca) == 2
        server_tls(files(ca))
        with pytest.raises(BadAuthority, match="switch"):
            ca.rotate("finish")
        ca.rotate("switch")
        ca.rotate("switch")
        with pytest.raises(BadAuthority, match="node-1"):
            ca.rotate("finish")
        with pytest.raises(BadAuthority, match="not finished"):
            ca.rotate("prepare")
        old = files(ca)
        kept = [Path(name).read_bytes() for name in old[:2]]
        ca.renew("node-1")
        server_tls(files(ca))
        assert bundled(ca) == 2
        ca.rotate("finish")
        assert bundled(ca) == 1
        server_tls(files(ca))
        for name, data in zip(old[:2], kept, strict=True):
            Path(name).write_bytes(data)
        with pytest.raises(BadCertificate, match="does not verify"):
            server_tls(old)


class Killed(Exception):
    """The process ends here."""


def dies_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Be killed in the write of that number: behind the new file, before its rename."""
    writes = [0]
    rename = Path.rename

    def renamed(self: Path, target: Path) -> Path:
        writes[0] += 1
        if writes[0] == number:
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(authority.Path, "rename", renamed)


STEPS = ("issue", "prepare", "switch", "renew", "finish", "revoke")


def take(ca: Authority, step: str) -> None:
    """Take a step, unless it was done before the process ended."""
    if step == "issue":
        if not any(one.name == "node-1" for one in ca.issued()):
            ca.issue(node(SYSTEM, 1), ["broker1"])
    elif step == "renew":
        ca.renew("node-1")
    elif step == "revoke":
        if any(one.name == "node-1" for one in ca.issued()):
            ca.revoke("node-1")
    else:
        ca.rotate(step)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("killed_in", STEPS)
def test_whoever_is_killed_at_any_write_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str, number: int
) -> None:
    with begun(tmp_path, SYSTEM):
        pass
    for step in STEPS:
        if step == killed_in:
            dies_at(monkeypatch, number)
            try:
                with opened(tmp_path) as ca:
                    take(ca, step)
            except Killed:
                pass
            monkeypatch.undo()
        with opened(tmp_path) as ca:
            take(ca, step)
            if step != "revoke":
                server_tls(files(ca))
            if step in ("prepare", "switch"):
                assert bundled(ca) == 2, "what signs next is trusted before it signs"
    with opened(tmp_path) as ca:
        assert bundled(ca) == 1
        assert not ca.issued()
        assert len(ca.revoked()) >= 2
