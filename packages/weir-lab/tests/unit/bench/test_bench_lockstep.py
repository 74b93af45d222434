"""The program in C: it compiles, publishes to a real node and to a peer, and counts exactly."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from weir_lab.bench.flow import singles
from weir_lab.bench.harness import lockstep as plan
from weir_lab.bench.harness.producers import ProducersFailed
from weir_lab.bench.lockstep.produce import compiled
from weir_lab.bench.sides.own import running_own
from weir_lab.bench.sides.peers.peers import peer
from weir_lab.bench.sides.peers.rival import running_rival
from weir_lab.bench.sides.side import topic_name

pytestmark = pytest.mark.skipif(plan.compiler() is None, reason="there is no C compiler")


def test_a_real_node_takes_each_message_once_from_each_connection(tmp_path: Path) -> None:
    counts = [40, 39, 0, 1]
    with running_own(str(tmp_path)) as side:
        found = asyncio.run(singles(side, "c", counts, 100, 30.0, behind="python"))
    assert found.clean
    assert (found.generator, found.messages, found.shape) == ("c", 80, "singles")
    assert found.python_per_s is not None
    assert found.python_per_s > 0
    assert found.cpu_s.producers > 0


@pytest.mark.usefixtures("fake_redis")
def test_a_peer_is_driven_by_the_same_program(tmp_path: Path) -> None:
    with running_rival(peer("redis:always")[0], str(tmp_path)) as side:
        found = asyncio.run(singles(side, topic_name(1), [30, 29], 100, 30.0, behind=topic_name(2)))
    assert found.clean
    assert (found.generator, found.messages) == ("c", 59)


@pytest.mark.usefixtures("fake_redis")
def test_what_a_peer_refuses_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_REFUSES", "1")
    with (
        running_rival(peer("redis:always")[0], str(tmp_path)) as side,
        pytest.raises(ProducersFailed, match="redis refused: -OOM command not allowed"),
    ):
        asyncio.run(singles(side, topic_name(1), [3], 100, 30.0, behind=topic_name(2)))


def test_without_a_compiler_python_clients_send(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.in_lockstep("redis:always", 1, "t", [1], 100, 1.0) is not None
    assert plan.in_lockstep("rabbitmq:quorum", 1, "t", [1], 100, 1.0) is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert plan.in_lockstep("redis:always", 1, "t", [1], 100, 1.0) is None


def test_the_program_compiles_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = plan.compiler()
    assert command is not None
    strict = tmp_path / "strict"
    strict.write_text(f'#!/bin/sh\nexec {command} -Wall -Wextra -Werror "$@"\n')
    strict.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(strict))
    assert compiled(tmp_path).exists()
