"""Greetings and frames of links are the bytes of the golden file, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weir.protocol import link

CASES = json.loads(Path(__file__).with_name("link_frames.json").read_text(encoding="utf-8"))
GREETINGS = [case for case in CASES["frames"] if case["kind"] != "LinkFrame"]
FRAMES = [case for case in CASES["frames"] if case["kind"] == "LinkFrame"]


def golden(case: dict[str, Any]) -> bytes:
    return bytes.fromhex("".join(data for _, data, _ in case["fields"]))


@pytest.mark.parametrize("case", GREETINGS, ids=lambda case: case["name"])
def test_greetings_are_the_golden_bytes(case: dict[str, Any]) -> None:
    said = msgspec.convert(case["message"], getattr(link, case["kind"]))
    assert link.encode_greeting(said) == golden(case)
    body = link.Greeting().receive(golden(case))
    assert body is not None
    read = link.decode_hello if case["kind"] == "LinkHello" else link.decode_answer
    assert read(body) == said


@pytest.mark.parametrize("case", FRAMES, ids=lambda case: case["name"])
def test_frames_are_the_golden_bytes(case: dict[str, Any]) -> None:
    kind, group, body = case["message"]
    assert b"".join(link.encode(kind, group, bytes.fromhex(body))) == golden(case)
    (frame,) = link.LinkStream().receive(golden(case))
    assert (frame.kind, frame.group, bytes(frame.body)) == (kind, group, bytes.fromhex(body))
