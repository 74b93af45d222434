"""Names, settings and keys of topics."""

from __future__ import annotations

import pytest

from weir.errors import BadName, BadRequest
from weir.model.ids import group_of
from weir.model.limits import RETENTION_MS_MIN
from weir.model.topic import (
    FOREVER,
    End,
    SettingsChange,
    Topic,
    TopicSettings,
    check_name,
    check_settings,
    check_together,
    partition_for,
    split_name,
)


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "x" * 128, "..."])
def test_names_that_are_fine(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 129, "a b", "a/b", "é", "a\n", "\nabc", "a\0", "\u0661"]
)
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(BadName, match=r"cluster .* is not allowed"):
        check_name(name, "cluster")


def test_a_refusal_does_not_repeat_an_endless_name() -> None:
    with pytest.raises(BadName) as caught:
        check_name("y" * 1_000_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "expected"), [("locks", ("default", "locks")), ("home/locks", ("home", "locks"))]
)
def test_names_are_split_at_the_slash(name: str, expected: tuple[str, str]) -> None:
    assert split_name(name) == expected


@pytest.mark.parametrize("name", ["/locks", "home/", "a/b/c", "/", ""])
def test_both_parts_of_a_name_are_checked(name: str) -> None:
    with pytest.raises(BadName):
        split_name(name)


def test_a_topic_names_its_groups_in_order() -> None:
    topic = Topic(3, "default", "locks", 2, 2)
    assert topic.groups() == [group_of(3, 0), group_of(3, 1)]


def test_the_default_namespace_goes_without_saying() -> None:
    assert Topic(1, "default", "locks", 1, 1).full_name == "locks"
    assert Topic(1, "home", "locks", 1, 1).full_name == "home/locks"


@pytest.mark.parametrize(
    ("partitions", "order"), [(0, "partition"), (1_025, "partition"), (1, "totl"), (1, "")]
)
def test_settings_that_cannot_be_served(partitions: int, order: str) -> None:
    with pytest.raises(BadRequest):
        check_settings(partitions, order)


def test_a_change_of_settings_leaves_the_rest_as_it_is() -> None:
    settings = TopicSettings(5_000, 7)
    assert SettingsChange().over(settings) == settings
    assert SettingsChange(retention_bytes=9).over(settings) == TopicSettings(5_000, 9)
    assert SettingsChange(FOREVER, FOREVER).over(settings) == TopicSettings(FOREVER, FOREVER)
    assert SettingsChange(5_000).agrees(settings)
    assert not SettingsChange(5_000, 8).agrees(settings)


@pytest.mark.parametrize("ms", [1, RETENTION_MS_MIN - 1])
def test_a_retention_too_short_to_be_read_is_refused(ms: int) -> None:
    with pytest.raises(BadRequest, match="at least 1,000 ms"):
        SettingsChange(retention_ms=ms).over(TopicSettings())


def test_what_a_topic_scatters_with_is_kept_by_full_names() -> None:
    change = SettingsChange(scatter_with=("default/b", "home/a", "b"))
    settings = change.over(TopicSettings(5_000, 7))
    assert settings == TopicSettings(5_000, 7, ("b", "home/a"))
    assert SettingsChange(retention_bytes=9).over(settings).scatter_with == ("b", "home/a")
    assert SettingsChange(scatter_with=()).over(settings).scatter_with == ()
    with pytest.raises(BadName):
        SettingsChange(scatter_with=("a b",)).over(settings)


def scattering(id: int, name: str, *others: str) -> Topic:
    return Topic(id, "default", name, 1, 1, settings=TopicSettings(scatter_with=others))


def test_topics_are_scattered_to_together_if_each_says_so() -> None:
    one, other = scattering(1, "one", "other", "third"), scattering(2, "other", "one")
    check_together([one])
    check_together([one, other])
    with pytest.raises(BadRequest, match="weir topic alter third --scatter-with one"):
        check_together([one, scattering(3, "third")])


@pytest.mark.parametrize("partitions", [1, 1_024])
def test_settings_that_can_be_served(partitions: int) -> None:
    check_settings(partitions, "partition")


def test_keys_keep_their_partition_for_ever() -> None:
    # Producers of every release and language must agree on these.
    assert [partition_for(key, 8) for key in (b"", b"door-1", b"door-2", b"\0")] == [2, 7, 7, 3]
    assert partition_for(b"anything", 1) == 0


def test_a_key_moves_only_if_its_partition_ends() -> None:
    # Producers of every release and language must agree on these, too.
    keys = (b"", b"door-1", b"door-2", b"\0", b"door-5")
    assert [partition_for(key, 8, {7}) for key in keys] == [2, 4, 3, 3, 5]
    for closed in ({7}, {7, 3}, {7, 3, 2}, set(range(1, 8))):
        for number in range(200):
            key = b"%d" % number
            found = partition_for(key, 8, closed)
            assert found not in closed
            home = partition_for(key, 8)
            assert found == home or home in closed
            for more in closed:  # one more that ends takes no key away from another
                before = partition_for(key, 8, closed - {more})
                assert before in (found, more)
    assert partition_for(b"x", 1_024, set(range(1, 1_024))) == 0


def test_a_hub_stays_where_it_is_unless_that_ends() -> None:
    topic = Topic(1, "default", "t", 9, 8)
    ended = Topic(1, "default", "t", 9, 8, ends=(End(3), End(5, 70, 4, True)))
    assert ended.closed == {3, 5}
    assert ended.end_of(5) == End(5, 70, 4, True)
    assert ended.end_of(4) is None
    for hub in range(300):
        before, after = topic.partition_of_hub(hub), ended.partition_of_hub(hub)
        assert after < 8, "it was founded with those"
        assert after not in (3, 5)
        assert after == before or before in (3, 5)
        places = ended.places_of_hub(hub)
        assert {before, after} <= set(places) <= {after, 3, 5}
        assert topic.places_of_hub(hub) == [before]
