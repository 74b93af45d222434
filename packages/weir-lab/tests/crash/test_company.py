"""The whole company on this machine: data centres are cut off, and nothing stays behind.

`make proof` runs it longer; this shows that all of it works.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from weir.server.interpreter import environment, python

_WORDS = ("world", "--seconds", "2", "--rate", "40", "--readers", "1", "--down", "1")


def _left(mark: str) -> list[int]:
    """Return the processes whose command or environment has a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in text:
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("proxies", [(), ("--proxies",)], ids=["devices", "proxies"])
def test_all_cities_see_one_order_while_data_centres_are_cut_off(
    tmp_path: Path, proxies: tuple[str, ...]
) -> None:
    mark = f"WEIR_TEST_MARK={tmp_path}"
    cuts = "beijing-telecom,guangzhou-unicom-tandem,hangzhou-mobile-2"
    done = subprocess.run(
        python("weir.cli", *_WORDS, *proxies, "--cut", cuts, "--json"),
        env={**environment(), "WEIR_TEST_MARK": str(tmp_path)}, timeout=280, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["schema"] == "weir.world/1"
    assert [told[one] for one in ("lost", "repeated", "out_of_order", "differing")] == [0] * 4
    assert told["failed"] == []
    assert told["network"] in ({"proxies"} if proxies else {"tun", "proxies"})
    # A core for each topic, two readers of three cities each.
    assert [one["reader"].split()[0] for one in told["readings"]].count("core") == 2
    assert len(told["readings"]) == 2 * (1 + 6)
    assert all(one["messages"] for one in told["readings"])
    assert [(one["site"], one["tier"]) for one in told["cuts"]] == [
        ("beijing-telecom", "core"), ("guangzhou-unicom-tandem", "tandem"),
        ("hangzhou-mobile-2", "access"),
    ]  # fmt: skip
    assert told["cuts"][2]["delivery_ms"]["hangzhou"] > 1_000 * 0.5, "it was cut off for a second"
    rows = {one["city"]: one for one in told["cities"]}
    assert [*rows] == ["tianjin", "hangzhou", "shenzhen", "beijing"]
    # From Beijing and back, through glass alone.
    assert rows["shenzhen"]["confirm"]["p50_ms"] > 2 * 14
    assert rows["beijing"]["delivery"] is None
    assert told["backbone_tiers"] > 0
    assert told["backbone_direct"] > 0
    assert _left(mark) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_behind_of_a_company_that_is_ended(tmp_path: Path, number: int) -> None:
    mark = f"WEIR_TEST_MARK={tmp_path}"
    words = python("weir.cli", *_WORDS, "--cut", "", "--data", str(tmp_path / "data"))
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**environment(), "WEIR_TEST_MARK": str(tmp_path)}, start_new_session=True,
    ) as company:  # fmt: skip
        assert company.stderr is not None
        for line in company.stderr:
            if "readers are at the core" in line:
                break
        assert len(_left(mark)) > 8
        company.send_signal(number)
        company.wait(60)
    while _left(mark):  # nodes end by themselves once they see that it is gone
        time.sleep(0.1)
