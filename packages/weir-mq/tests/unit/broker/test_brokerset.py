"""What a shard has its host do about links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from weir.broker.api.effects import GuardLinks
from weir.broker.api.settings import Identity
from weir.broker.brokerset import NodeLinks


def test_links_are_guarded_at_once_and_freed_by_a_current_registry_only() -> None:
    effects: list[object] = []
    outbox: Any = SimpleNamespace(put=effects.append)
    links = NodeLinks(Identity(7), outbox)
    links.guard("open", is_current=False)  # it may be closed since
    assert not effects
    links.guard("closed", is_current=False)
    links.guard("closed", is_current=True)
    assert effects == [GuardLinks(named_only=True)]
    links.guard("open", is_current=False)
    links.guard("watch", is_current=True)
    assert effects[1:] == [GuardLinks(named_only=False)]
