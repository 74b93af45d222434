"""Addresses at which nothing can be taken: each error names the address and says what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from weir_toc.cli import FAILED, main
from weir_toc.errors import CannotListen
from weir_toc.hosts.udp import UdpSocket

#: Of TEST-NET-1: no machine has it.
STRANGE = "192.0.2.1"


@pytest.mark.parametrize(
    ("host", "advice"),
    [("127.0.0.1", "another program has it: end that one, or take another port"),
     (STRANGE, "this machine has no such address: give one that it has as --listen")],
)  # fmt: skip
def test_a_member_and_an_aggregator_name_the_address(
    host: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken, socket.socket(type=socket.SOCK_DGRAM) as taken_udp:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        taken_udp.bind(("127.0.0.1", 0))
        member = f"{host}:{taken.getsockname()[1]}"
        switch = f"{host}:{taken_udp.getsockname()[1]}"
        arguments = ["--id", "1", "--folder", str(tmp_path)]
        assert main(["controller", "--members", f"toc://{member}", *arguments]) == FAILED
        assert f"cannot listen at {member}: {advice}" in capsys.readouterr().err
        assert main(["aggregator", "toc://127.0.0.1:1", "--listen", switch]) == FAILED
        assert f"cannot listen at {switch}: {advice}" in capsys.readouterr().err


def test_a_name_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(CannotListen, match="at nowhere:7: nobody knows this name"):
        UdpSocket(("nowhere", 7))
