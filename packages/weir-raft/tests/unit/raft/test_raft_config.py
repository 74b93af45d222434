from __future__ import annotations

import pytest

from weir_raft import Config, InvalidConfig, MemoryStorage, Node


def test_a_lone_voter_is_valid() -> None:
    Config(id=7, voters=(7,), fence=3, applied=0).validate()


@pytest.mark.parametrize(
    "config",
    [
        Config(id=1, voters=(1, 2)),
        Config(id=1, voters=(2, 1, 3)),
        Config(id=1, voters=(1,), learners=(2,)),
        Config(id=1, voters=(2,), learners=(1,)),
        Config(id=1, voters=(2,)),
        Config(id=1, voters=()),
    ],
)
def test_any_members_are_valid_and_a_node_need_not_be_one_yet(config: Config) -> None:
    config.validate()
    assert Node(config, MemoryStorage()).configuration.voters == config.voters


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(id=0, voters=(0,)), "ids must be positive"),
        (Config(id=1, voters=(1, -2)), "ids must be positive"),
        (Config(id=1, voters=(1, 1)), "named twice"),
        (Config(id=1, voters=(1,), learners=(1,)), "named twice"),
        (Config(id=1, voters=(1,), fence=-1), "fence and applied"),
        (Config(id=1, voters=(1,), applied=-1), "fence and applied"),
        (Config(id=1, voters=(1,), max_apply_bytes=0), "max_apply_bytes"),
        (Config(id=1, voters=(1,), max_pending_bytes=0), "max_pending_bytes"),
        (Config(id=1, voters=(1,), max_append_bytes=0), "max_append_bytes"),
        (Config(id=1, voters=(1,), max_inflight_bytes=0), "max_inflight_bytes"),
        (Config(id=1, voters=(1,), snapshot_chunk_bytes=0), "snapshot_chunk_bytes"),
        (Config(id=1, voters=(1,), heartbeat_ms=0), "heartbeat_ms"),
        (Config(id=1, voters=(1,), heartbeat_ms=100, election_ms=100), "election_ms must be above"),
    ],
)
def test_a_contradiction_is_named(config: Config, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        config.validate()
