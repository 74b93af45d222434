"""The fuzzer runs clean over a small count; `make proof` raises WEIR_FUZZ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

from weir.access.devices import FrameMac
from weir.broker.devices import proofs as of_devices
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.rules import Rule
from weir.protocol import proof as of_frames
from weir.protocol.device import DeviceStream
from weir.server.observability.guard import NodeGuard

FUZZER = Path(__file__).with_name("fuzz_dialects.py")
OF_ACCESS = Path(__file__).with_name("fuzz_access.py")


def test_no_input_gets_anything_but_a_documented_error_out_of_a_reader() -> None:
    environment = {"WEIR_FUZZ": "20000", **os.environ}
    found = subprocess.run(
        [sys.executable, str(FUZZER)], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert {line["reader"] for line in lines} == {
        "device", "device-replies", "client", "client-replies", "batch", "link", "link-greeting",
        "trunk",
    }  # fmt: skip
    for line in lines:
        assert line["whole"] > 0, "no input got through: the damage is too heavy to find anything"
        assert line["broken"] > 0, "no input was refused: there is no damage"


def test_nobody_gets_in_by_chance() -> None:
    command = [sys.executable, str(OF_ACCESS), "--seeds", "2", "--inputs", "2000"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    told = json.loads(found.stdout)
    assert told["crashes"] == 0
    assert told["by_fuzzer"] == {
        "logins": 4_000, "challenges": 4_000, "signed": 4_000, "signers": 80, "tokens": 400,
        "pages": 100, "sessions": 1_000, "insiders": 400, "tls": 80,
    }  # fmt: skip
    for name in told["by_fuzzer"]:
        assert told["outcomes"][f"{name} refused"] > 0, "there is no damage"
    for name in told["by_fuzzer"].keys() - {"sessions"}:
        assert told["outcomes"][f"{name} whole"] > 0, "the damage is too heavy to find anything"


#: A fuzzer that keeps 8 MiB a seed.
_LEAKS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import fuzz_access
kept = []
fuzz_access.FUZZERS = {"leaks": (lambda *_: kept.append(b"x" * (8 << 20)), 1)}
sys.exit(fuzz_access.main())
"""
#: Starts it, and is larger than it ever becomes.
_LARGE = """
import subprocess, sys
kept = b"x" * (256 << 20)
sys.exit(subprocess.call([sys.executable, "-c", *sys.argv[1:]]))
"""


def test_memory_that_grows_is_told_whoever_starts_the_fuzzer() -> None:
    """Counterexample: the kernel's maximum of a process began with that of its parent."""
    command = [sys.executable, "-c", _LARGE, _LEAKS, str(OF_ACCESS.parent), "--seeds", "3"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout)["rss_grown_kib"] > 2 * 7 << 10


@pytest.mark.parametrize("verb", ["read", "describe", "publish", "consume"])
def test_a_user_who_may_do_more_is_found(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(OF_ACCESS.parent)
    fuzz_access = import_module("fuzz_access")
    more = Rule(("publish", verb), "topic", "default/o", True)
    monkeypatch.setattr(fuzz_access, "rule", lambda *_: more)
    with pytest.raises(AssertionError):
        fuzz_access.fuzz_insiders(Random(1), 1_000, Counter())


def _counted_by_nobody(mac: FrameMac, counter: int, content: bytes) -> bytes:
    return MAC_OF(mac, 0, content)


MAC_OF = FrameMac.of
PLANTED: list[tuple[str, Any, str, object]] = [
    ("fuzz_signers", FrameMac, "of", _counted_by_nobody),
    ("fuzz_signers", of_frames, "check_proof", lambda *_: True),
    ("fuzz_signers", of_devices, "check_proof", lambda *_: True),
    ("fuzz_signers", DeviceStream, "_waits", property(lambda _: False, lambda *_: None)),
    ("fuzz_pages", NodeGuard, "_is_allowed", lambda *_: True),
    ("fuzz_pages", Access, "authorize", lambda *_: "a role"),
]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: f"{bug[1].__name__} {bug[2]}")
def test_a_guard_that_is_left_out_is_found(
    bug: tuple[str, Any, str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(OF_ACCESS.parent)
    fuzz_guarded = import_module("fuzz_guarded")
    name, owner, what, instead = bug
    monkeypatch.setattr(owner, what, instead)
    # Else it was refused what is right, which would be found by any bug.
    with pytest.raises(AssertionError, match=r"taken|stored|shown"):
        getattr(fuzz_guarded, name)(Random(1), 2_000, Counter())
