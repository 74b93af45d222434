"""docs/PROTOCOL.md and docs/client-frames.json say what is declared."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
MADE = runpy.run_path(str(ROOT / "tools" / "protocol-page"))
PAGE = (ROOT / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
FRAMES = (ROOT / "docs" / "client-frames.json").read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert MADE["page"](PAGE) == PAGE, "the protocol changed: run tools/protocol-page, and say why"


def test_every_request_and_reply_has_a_golden_frame() -> None:
    assert MADE["with_missing"](FRAMES) == FRAMES, "run tools/protocol-page for the new ones"


def test_what_is_changed_or_missing_is_found() -> None:
    assert MADE["page"](PAGE.replace("| 16 | [Produce]", "| 61 | [Produce]", 1)) == PAGE
    frames: list[dict[str, Any]] = json.loads(FRAMES)["frames"]
    left = [one for one in frames if one["kind"] != "SeekCursor"]
    (made,) = MADE["missing"](left)
    assert (made["name"], made["opcode"]) == ("request SeekCursor", 30)
    assert [name for name, _, _ in made["fields"]][-3:] == ["address", "cluster", "offsets"]
