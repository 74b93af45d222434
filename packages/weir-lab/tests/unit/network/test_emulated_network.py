"""Emulated networks of real processes, and what is said where there can be none."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rigs import two_places
from weir.server.interpreter import environment
from weir_lab.network.carriers import all_pairs
from weir_lab.network.emulated import EmulatedNetwork
from weir_lab.network.links import Link
from weir_lab.network.namespaces import NoNetwork, enter


def test_packets_are_delayed_cut_one_way_and_counted() -> None:
    how = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    done = subprocess.run(
        ["unshare", *how, sys.executable, "-P", two_places.__file__],
        capture_output=True, text=True, env=environment(), check=False, timeout=60,
    )  # fmt: skip
    if not os.access("/dev/net/tun", os.W_OK):
        assert "NoNetwork" in done.stderr or "unshare" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["echoed"] == 1_010
    assert told["took_s"] >= 0.02, "two links of 10 ms"
    assert not told["came"]
    head = 28  # of IP and UDP
    assert told["there"] == [3, 1_110 + 3 * head]
    assert told["back"] == [2, 1_010 + 2 * head, 1]


def test_places_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 200 places"):
        EmulatedNetwork(["a", "a"], {})
    with pytest.raises(ValueError, match="loss=2"):
        EmulatedNetwork(["a", "b"], {("a", "b"): Link(loss=2)})
    assert [*all_pairs("abc", lambda one, other: Link())] == [
        ("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b"),
    ]  # fmt: skip


def test_who_cannot_have_namespaces_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoNetwork, match="util-linux"):
        enter(["world"])
