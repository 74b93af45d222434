"""One decision by rules: exact names, beginnings of names, and what nobody wrote down."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.access import rule
from weir.broker.metadata.security.rules import (
    ADMIN,
    VERBS,
    RoleRules,
    Rule,
    authorize,
    authorize_any,
    cluster_name,
    make_rule,
    resource_name,
    topic_name,
)
from weir.errors import BadName, BadRequest

NAMES = st.text("ab.", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))


def may(rules: list[Rule], verb: Any, kind: Any, name: str) -> bool:
    return authorize([("role", RoleRules(rules))], verb, kind, name) is not None


def test_a_rule_is_of_its_verbs_its_kind_and_its_name() -> None:
    one = Rule(("publish", "read"), "topic", "default/t")
    assert may([one], "publish", "topic", "default/t")
    assert may([one], "read", "topic", "default/t")
    for verb, kind, name in (
        ("consume", "topic", "default/t"),
        ("publish", "cluster", "default/t"),
        ("publish", "topic", "default/t2"),
        ("publish", "topic", "default/"),
        ("publish", "topic", ""),
        ("publish", "topic", "other/t"),
    ):
        assert not may([one], verb, kind, name)
    assert not may([], "publish", "topic", "default/t")


def test_a_beginning_is_one_of_its_namespace() -> None:
    one = make_rule(["publish"], "topic", "or", True)
    assert one.name == "default/or"
    assert may([one], "publish", "topic", "default/orders")
    assert not may([one], "publish", "topic", "orders/x")
    shop = make_rule(["publish"], "topic", "shop/", True)
    assert may([shop], "publish", "topic", "shop/x")
    assert not may([shop], "publish", "topic", "shopping/x")
    assert not may([shop], "publish", "topic", "workshop/x"), "it is no part of a name"
    assert not may([one], "publish", "topic", "no-default/orders")
    assert may([make_rule(["publish"], "topic", "", True)], "publish", "topic", "any/thing")


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=4), NAMES, NAMES, NAMES)
def test_who_has_anything_of_a_topic_may_have_it_described(
    given: list[tuple[str, str, str]], namespace: str, topic: str, cluster: str
) -> None:
    full = topic_name(namespace, topic)
    inside = cluster_name(full, cluster)
    for (space, name, group), is_prefix in itertools.product(given, (False, True)):
        for one in (
            rule("publish", "topic", topic_name(space, name), is_prefix),
            rule("consume", "cluster", cluster_name(topic_name(space, name), group), is_prefix),
        ):
            allowed = may([one], "publish", "topic", full) or may(
                [one], "consume", "cluster", inside
            )
            if allowed:
                assert may([one], "describe", "topic", full)
            if (space, name) == (namespace, topic):
                assert may([one], "describe", "topic", full)
            elif not is_prefix:
                assert not may([one], "describe", "topic", full)


def covers(one: Rule, verb: str, kind: str, name: str) -> bool:
    """What a rule says, as its docstring has it."""
    named = name.startswith(one.name) if one.is_prefix else name == one.name
    return one.kind == kind and verb in one.verbs and named


def concerns(one: Rule, topic: str) -> bool:
    """Whether a rule is about a topic, or about a cluster that it may have."""
    inside = topic + ":"
    if one.kind == "topic":
        return topic.startswith(one.name) if one.is_prefix else topic == one.name
    if one.kind == "cluster":
        begins = one.is_prefix and inside.startswith(one.name)
        return one.name.startswith(inside) or begins
    return False


FULL = st.sampled_from(["", "a", "a/", "a/b", "a/bb", "a/b:", "a/b:c", "a/b:cc", "a/bb:c", "b/b"])
RULES = st.builds(
    Rule,
    st.lists(st.sampled_from(["publish", "consume", "describe"]), min_size=1).map(tuple),
    st.sampled_from(["topic", "cluster", "namespace"]),
    FULL,
    st.booleans(),
)


@given(
    st.lists(st.lists(RULES, max_size=4), max_size=3),
    st.sampled_from(["publish", "consume", "describe"]),
    st.sampled_from(["topic", "cluster", "namespace"]),
    FULL,
)
def test_what_is_found_by_names_is_what_trying_each_rule_finds(
    given: list[list[Rule]], verb: Any, kind: Any, name: str
) -> None:
    roles = [(str(number), RoleRules(rules)) for number, rules in enumerate(given)]
    found = authorize(roles, verb, kind, name)
    known = verb == "describe" and kind == "topic"
    right = [
        (str(number), one)
        for number, rules in enumerate(given)
        for one in rules
        if covers(one, verb, kind, name) or (known and ":" not in name and concerns(one, name))
    ]
    if ":" not in name or not known:
        assert (found is None) == (not right)
        assert found is None or found in right
    topic = name.partition(":")[0]
    anything = authorize_any(roles, verb, kind, topic)
    right = [
        (str(number), one)
        for number, rules in enumerate(given)
        for one in rules
        if one.kind == kind and verb in one.verbs and (not topic or concerns(one, topic))
    ]
    assert (anything is None) == (not right)
    assert anything is None or anything in right


class _Looked(tuple[str, ...]):
    """Verbs that count how often somebody looks at them."""

    __slots__ = ()
    count = 0

    def __contains__(self, verb: object) -> bool:
        type(self).count += 1
        return tuple.__contains__(self, verb)


def test_rules_of_other_names_are_not_looked_at() -> None:
    rules = [
        Rule(_Looked(["consume"]), kind, f"default/{number}{end}", is_prefix)
        for number in range(250)
        for kind, end in (("topic", ""), ("cluster", ":c"))
        for is_prefix in (False, True)
    ]
    roles = [(str(number), RoleRules(rules)) for number in range(64)]
    _Looked.count = 0
    assert authorize(roles, "publish", "topic", "default/other") is None
    assert authorize(roles, "describe", "topic", "default/other") is None
    assert authorize_any(roles, "consume", "cluster", "default/other") is None
    assert _Looked.count == 0
    assert authorize(roles, "consume", "topic", "default/249") is not None
    assert _Looked.count <= 3


def test_the_administrator_may_do_everything() -> None:
    roles = [(ADMIN, RoleRules())]
    for kind, verbs in VERBS.items():
        for verb in verbs:
            found = authorize(roles, verb, kind, "x/y")  # type: ignore[arg-type]
            assert found is not None
            assert found.role == ADMIN
    assert authorize([("admin2", RoleRules())], "publish", "topic", "x/y") is None


def test_any_topic_is_one_of_the_kind() -> None:
    given = rule("publish", "topic", "a/b"), rule("consume", "cluster", "a/c:x")
    rules = [("r", RoleRules(given))]
    assert authorize_any(rules, "publish", "topic")
    assert authorize_any(rules, "consume", "cluster", "a/c")
    assert not authorize_any(rules, "consume", "cluster", "a/c2")
    assert not authorize_any(rules, "consume", "cluster", "a/b")
    assert not authorize_any(rules, "consume", "topic")
    assert not authorize_any(rules, "read", "topic")


@pytest.mark.parametrize(
    ("verbs", "kind", "name", "is_prefix", "error"),
    [
        (["publish"], "topics", "t", False, "kind 'topics'"),
        (["create"], "topic", "t", False, "with a topic there is alter"),
        (["describe "], "topic", "t", False, "verb 'describe '"),
        ([], "topic", "t", False, "no verb"),
        (["publish"], "topic", "*", False, "is not allowed"),
        (["publish"], "topic", "*", True, "is none either"),
        (["publish"], "topic", "a/b/c", True, "namespace 'a/b'"),
        (["publish"], "topic", "/x", True, "namespace ''"),
        (["publish"], "topic", "t:c", True, "give the kind cluster"),
        (["consume"], "cluster", "t", False, "TOPIC:CLUSTER"),
        (["consume"], "cluster", "t:", False, "cluster ''"),
        (["consume"], "cluster", ":c", True, "topic ''"),
        (["consume"], "cluster", "t:c:d", True, "characters"),
        (["create"], "namespace", "a/b", False, "namespace 'a/b'"),
        (["create"], "namespace", "a/", True, "characters"),
        (["pull"], "set", "a/b", False, "set 'a/b'"),
        (["pull"], "set", "a/", True, "characters"),
        (["read"], "set", "near", False, "with a set there is pull"),
        (["list"], "system", "x", False, "leave out 'x'"),
        (["list"], "system", "x", True, "leave out --prefix"),
        (["publish"], "topic", "x" * 129, True, "characters"),
    ],
)
def test_what_is_no_rule_is_refused_with_what_to_write(
    verbs: list[str], kind: str, name: str, is_prefix: bool, error: str
) -> None:
    with pytest.raises((BadName, BadRequest), match=error.replace("*", r"\*")):
        make_rule(verbs, kind, name, is_prefix)


def test_a_rule_says_how_it_is_added() -> None:
    assert str(make_rule(["read", "publish"], "topic", "t", False)) == (
        "publish,read topic default/t"
    )
    assert str(make_rule(["publish"], "topic", "s/", True)) == "publish topic s/ --prefix"
    assert str(make_rule(["list"], "system", "", False)) == "list system"
    assert str(make_rule(["create"], "namespace", "", True)) == "create namespace --everything"
    assert str(make_rule(["pull"], "set", "near", False)) == "pull set near"
    assert resource_name("cluster", "s/t:c") == "s/t:c"
