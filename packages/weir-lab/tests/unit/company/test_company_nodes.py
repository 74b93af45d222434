"""Processes of the company: none is waited for for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weir_lab.company import nodes
from weir_lab.company.nodes import CompanyFailed, OfficeProcess
from weir_lab.company.office import Await


def test_an_office_that_does_not_answer_in_time_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = OfficeProcess("here", (), tmp_path / "log")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(nodes, "_ANSWER_S", 0.0)
            with pytest.raises(CompanyFailed, match="does not answer"):
                asyncio.run(office.ask(Await(0, 1.0)))
        with pytest.raises(CompanyFailed, match="has ended"):
            asyncio.run(office.ask(Await(0, 1.0)))
    finally:
        office.close()
