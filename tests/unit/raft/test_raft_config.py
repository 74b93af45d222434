from __future__ import annotations

import pytest

from weir.raft import Config, InvalidConfig, MemoryStorage, Node, UnsupportedConfiguration


def test_a_lone_voter_is_valid() -> None:
    Config(id=7, voters=(7,), fence=3, applied=0).validate()


@pytest.mark.parametrize(
    "config",
    [
        Config(id=1, voters=(1, 2)),
        Config(id=1, voters=(1, 2, 3)),
        Config(id=1, voters=(1,), learners=(2,)),
        Config(id=1, voters=(2,), learners=(1,)),
        Config(id=1, voters=(2,)),
        Config(id=1, voters=()),
    ],
)
def test_more_than_one_voter_is_refused_with_what_to_do(config: Config) -> None:
    wanted = "not in this release: give exactly one voter"
    with pytest.raises(UnsupportedConfiguration, match=wanted):
        config.validate()
    with pytest.raises(UnsupportedConfiguration, match=wanted):
        Node(config, MemoryStorage())


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
    ],
)
def test_a_contradiction_is_named(config: Config, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        config.validate()
    assert not isinstance(caught.value, UnsupportedConfiguration)
