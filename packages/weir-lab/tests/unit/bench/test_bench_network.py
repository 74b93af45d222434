"""What `weir_lab.bench.harness.network` says where there can be no network of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir_lab.bench.harness.network import NoNetwork, addresses, enter


def test_each_address_is_another() -> None:
    assert addresses(3) == ["10.7.0.11", "10.7.0.12", "10.7.0.13"]


def test_a_missing_command_is_told_with_what_brings_it() -> None:
    with pytest.raises(NoNetwork, match=r"no 'no-such-kernel' here.*scripts/apt-install"):
        enter("weir", [], ["no-such-kernel"])


def test_who_may_not_have_namespaces_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("unshare", "ip"):
        command = tmp_path / name
        command.write_text("#!/bin/sh\necho Operation not permitted >&2\nexit 1\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NoNetwork, match=r"Operation not permitted\. Be root.*--cap-add"):
        enter("weir", [], [])
