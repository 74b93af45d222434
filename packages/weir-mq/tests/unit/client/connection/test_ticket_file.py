"""The ticket of a user's login lies in a file until the next command."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir import sync, testing
from weir.access.login_tickets import TICKET_SECONDS, TicketIssuer
from weir.cli.main import main
from weir.client.connection.ticket_file import TicketFile, ticket_file
from weir.protocol.client.access import TICKET_BYTES_MAX

HOSTS = [("a", 6800), ("b", 6800)]
TICKET = TicketIssuer(bytes(32), 1).issue("user:default/ann#2", 1, 1_800_000_000, bytes(16))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "weir" / "tickets"


def test_a_ticket_is_read_by_the_next_process(folder: Path) -> None:
    assert TicketFile(folder, "ann", HOSTS).read() == b""
    assert not folder.exists(), "who only reads makes nothing"
    TicketFile(folder, "ann", HOSTS).write(TICKET)
    assert TicketFile(folder, "ann", HOSTS).read() == TICKET
    assert TicketFile(folder, "default/ann", HOSTS[::-1]).read() == TICKET
    TicketFile(folder, "ann", HOSTS).write(b"")
    TicketFile(folder, "ann", HOSTS).write(b"")
    assert list(folder.iterdir()) == []


def test_a_ticket_is_of_one_user_at_one_address(folder: Path) -> None:
    TicketFile(folder, "ann", HOSTS).write(TICKET)
    assert TicketFile(folder, "bob", HOSTS).read() == b""
    assert TicketFile(folder, "shop/ann", HOSTS).read() == b""
    assert TicketFile(folder, "ann", HOSTS[:1]).read() == b""
    assert TicketFile(folder, "ann", [("a", 6801), ("b", 6800)]).read() == b""


def test_nobody_else_may_read_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        TicketFile(folder, "ann", HOSTS).write(TICKET)
    finally:
        os.umask(before)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    path.chmod(0o640)
    assert TicketFile(folder, "ann", HOSTS).read() == b""
    TicketFile(folder, "ann", HOSTS).write(TICKET)
    assert TicketFile(folder, "ann", HOSTS).read() == TICKET
    assert [one.name for one in folder.iterdir()] == [path.name]


@pytest.mark.parametrize("data", [b"", b"not base64!\n", b"\xff\xfe\n", b"QUJD" * 1_000])
def test_what_is_no_ticket_costs_the_ticket_alone(folder: Path, data: bytes) -> None:
    file = TicketFile(folder, "ann", HOSTS)
    file.write(TICKET)
    (path,) = folder.iterdir()
    path.write_bytes(data)
    assert file.read() == b""


def test_a_ticket_that_no_broker_takes_is_none(folder: Path) -> None:
    file = TicketFile(folder, "ann", HOSTS)
    for size in (TICKET_BYTES_MAX, TICKET_BYTES_MAX + 1, 700):
        file.write(bytes(size))
        (path,) = folder.iterdir()
        assert base64.b64decode(path.read_bytes()) == bytes(size)
        assert len(file.read()) == (size if size <= TICKET_BYTES_MAX else 0)


def test_where_nothing_can_be_written_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "weir").write_text("a file in the place of the folder")
    file = TicketFile(tmp_path / "weir" / "tickets", "ann", HOSTS)
    file.write(TICKET)
    file.write(b"")
    assert file.read() == b""


def test_tickets_that_are_over_are_removed_when_another_comes(folder: Path) -> None:
    now, paths = 1_900_000_000, set[Path]()
    for user, age in (("old", TICKET_SECONDS + 1), ("new", TICKET_SECONDS)):
        TicketFile(folder, user, HOSTS, lambda: 0).write(TICKET)
        (path,) = {*folder.iterdir()} - paths
        os.utime(path, (now - age, now - age))
        paths.add(path)
    TicketFile(folder, "ann", HOSTS, lambda: now * 1_000_000).write(TICKET)
    there = [bool(TicketFile(folder, user, HOSTS).read()) for user in ("old", "new", "ann")]
    assert there == [False, True, True]


def test_who_has_no_home_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a number for its user."""
    assert ticket_file("ann", HOSTS) is not None
    assert ticket_file("", HOSTS) is None

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", none)
    assert ticket_file("ann", HOSTS) is None


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("orders")
            w.access.create_user("ann", "secret of ann")
        yield node


def test_a_command_is_known_by_the_last_one(
    node: testing.Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("WEIR_URL", node.url.replace("//", "//ann@"))
    monkeypatch.setenv("WEIR_PASSWORD", "secret of ann")
    assert main(["pub", "orders", "a"]) == 0
    (path,) = (tmp_path / "weir" / "tickets").iterdir()
    first = path.read_bytes()
    assert b"secret" not in first
    assert main(["pub", "orders", "b"]) == 0
    assert path.read_bytes() != first, "each login gives another one"
    path.write_bytes(b"AAAA\n")
    assert main(["pub", "orders", "c"]) == 0, "one that is not good costs a second attempt"
    assert len(path.read_bytes()) > 60
    path.write_bytes(base64.b64encode(bytes(TICKET_BYTES_MAX + 1)) + b"\n")
    assert main(["pub", "orders", "c"]) == 0, "the broker could not even read it"
    assert len(base64.b64decode(path.read_bytes())) < TICKET_BYTES_MAX
    monkeypatch.setenv("WEIR_URL", node.url)
    path.unlink()
    assert main(["pub", "orders", "d"]) == 0
    assert list(path.parent.iterdir()) == [], "who names no user has no ticket"
