from __future__ import annotations

from weir.raft.follower import Follower


def test_it_knows_no_leader_and_a_lone_one_campaigns_on_its_first_tick() -> None:
    follower = Follower()
    assert follower.leader == 0
    assert follower.tick()
