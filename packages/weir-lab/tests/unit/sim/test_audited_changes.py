"""How changes in the audit topic are judged; `test_revocations` plays worlds with them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from weir_lab.sim.scenarios.audited_changes import wrong

CREATE = ("create", "user", "default/ann")


def row(index: int, verb: str = "create") -> dict[str, Any]:
    return {"id": f"change:{index}", "verb": verb, "kind": "user", "resource": "default/ann"}


def test_what_is_wrong_is_said() -> None:
    one = Counter({CREATE: 1})
    assert wrong(one, [row(3)]) == []
    assert wrong(one, [row(3), row(5)]) == [], "its answer was lost, and it was asked for again"
    (lost,) = wrong(Counter({CREATE: 2}), [row(3)])
    assert lost == (
        "Audited", "1 times create user default/ann was answered, and is not in the audit topic"
    )  # fmt: skip
    assert [text for _, text in wrong(one, [row(3), row(3)])] == [
        "the change of entry 3 is there twice"
    ]
    assert [text for _, text in wrong(one, [row(3), row(5), row(3)])] == [
        "the change of entry 3 is there twice"
    ]
    assert [text for _, text in wrong(one, [row(5), row(3)])] == [
        "the change of entry 3 stands behind that of 5"
    ]
