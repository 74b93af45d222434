"""`weir lab attack` on real nodes: a closed one gives nothing away, and each attack would succeed
on a node that lets it.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from weir.client.access import AccessRule
from weir.testing.nodes import running_node
from weir_lab.attack import credentials, joining, strangers, tokens
from weir_lab.attack.run import NAMES, RESCUE, Settings, measure, rescue_an_administrator, steal
from weir_lab.attack.targets import Target, closed_target, open_target

#: What not even an open node allows: it is refused by the dialect itself.
NEVER = {
    "speak as a shard", "ask before hello", "hold memory before hello", "speak an old TLS",
    "flood with key updates",
    joining.SPENT,
}  # fmt: skip


def test_a_closed_node_gives_nothing_away_and_an_open_one_does() -> None:
    shown: list[int] = []
    result = measure(Settings(publishes=100), shown.append)
    assert (result.of_closed, result.of_disk) == ([], [])
    assert (result.achieved_closed, result.achieved_disk) == (0, 0)
    assert set(result.of_open) == set(NAMES) - NEVER
    assert result.achieved_open == len(result.of_open)
    assert shown == [*range(1, 2 * len(NAMES) + 1)]
    assert result.p99_ratio > 0


def test_attacks_by_tls_succeed_where_a_set_is_opened_again() -> None:
    """They fail in a closed set for want of a right, and not because they say it wrongly."""
    with closed_target() as target:
        with target.administrator() as root:
            root.access.set_mode("open")
        achieved = {name for name in strangers.ATTACKS if strangers.ATTACKS[name](target)}
        assert achieved == set(strangers.ATTACKS) - NEVER - {
            "fence another's lock"  # its fleet asks for a proof, whatever the mode
        }
        # Proofs and logins do not depend on the mode.
        assert not credentials.ATTACKS["replay a proof"](target)
        assert not credentials.ATTACKS["prove by another's secret"](target)


def test_a_role_that_names_all_of_a_kind_outlives_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack says something: by a rule that does not go with the topic it achieves it."""
    whole = partial(AccessRule, prefix=True)
    monkeypatch.setattr(tokens, "AccessRule", whole)
    with closed_target() as target:
        assert tokens.ATTACKS["outlive a topic"](target)


def test_a_secret_that_lies_in_a_folder_is_found() -> None:
    with open_target() as target:
        marked = Target(**{**_fields(target), "marks": {"a message": b"a secret of its owner"}})
        found = steal(marked)
        assert {"find a message", "list topics", "make an administrator", RESCUE} <= set(found)


def test_a_thief_who_has_the_key_file_as_well_is_rescued() -> None:
    """So it says something that a copy gives nothing away: the thief fails for want of the key file
    alone.
    """
    with closed_target() as target, tempfile.TemporaryDirectory(prefix="weir-stolen-") as name:
        copy = Path(name) / "data"
        shutil.copytree(target.folder, copy, ignore_dangling_symlinks=True)
        for lock in copy.rglob("lock"):
            lock.unlink()
        keys = Path(target.folder).parent / "keys"
        with running_node(copy, shards=1, key_file=str(keys)) as node:
            stolen = replace(target, host=node.host, port=node.port, folder=str(copy), bundle="")
            assert rescue_an_administrator(stolen)


def test_a_node_s_folder_is_worth_something_where_links_have_no_tls() -> None:
    """What a joining node said and its folder fail elsewhere for want of a certificate alone; the
    secret that it came by is worth nothing even here.
    """
    with joining.joined_set(is_closed=True, links="off") as joined:
        assert joining.attack(joined) == [joining.REPEATED]
        assert joining.steal(joined) == [joining.STOLEN]


def _fields(target: Target) -> dict[str, object]:
    return {name: getattr(target, name) for name in target.__struct_fields__}


@pytest.mark.parametrize("publishes", [0, 99, 1 << 21])
def test_what_cannot_be_measured_is_refused(publishes: int) -> None:
    with pytest.raises(ValueError, match="publishes"):
        Settings(publishes).check()
