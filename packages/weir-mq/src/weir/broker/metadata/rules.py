"""Who may do what: one pure decision, and the rules that it goes by.

A role has rules; users have roles. A rule allows verbs with a kind of resource that has exactly a
name, or begins with one. Nothing is denied by a rule and nothing is a pattern, so that no rule can
be overridden on a second path: what no rule allows is refused.

Names are written as `Kind` says, with the namespace always in front, so that the beginning of a
name never reaches into another namespace; only an empty beginning, which must be asked for, does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from weir.errors import BadName, BadRequest
from weir.model.limits import NAME_CHARACTERS_MAX
from weir.model.topic import DEFAULT_NAMESPACE, check_name, split_name
from weir.protocol.client.declaration import Kind, Verb, rights_there_are
from weir.protocol.client.messages import REQUESTS

#: The role that may do everything, in this release and all later ones; it cannot be changed.
ADMIN = "admin"
#: What separates the name of a cluster from that of its topic; no name has it in it.
OF_TOPIC = ":"
#: The verbs that there are, by kind of resource.
VERBS: Mapping[str, tuple[Verb, ...]] = dict(rights_there_are(REQUESTS).items())
_BEGINNING = re.compile(rf"[A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX}}}")


class Rule(NamedTuple):
    """Allows each of `verbs` with the resources of a kind that have this name, or, with
    `is_prefix`, that have a name beginning so.
    """

    verbs: tuple[str, ...]
    kind: str
    name: str
    is_prefix: bool = False

    def covers(self, verb: str, kind: str, name: str) -> bool:
        """Return whether it allows the verb with a resource."""
        if kind != self.kind or verb not in self.verbs:
            return False
        return name.startswith(self.name) if self.is_prefix else name == self.name

    def concerns(self, topic: str) -> bool:
        """Return whether it allows anything with a topic, or with a cluster of it, that may be
        there: so much must be known of the topic.
        """
        inside = topic + OF_TOPIC
        match self.kind, self.is_prefix:
            case "topic", True:
                return topic.startswith(self.name)
            case "topic", False:
                return topic == self.name
            case "cluster", True:
                return inside.startswith(self.name) or self.name.startswith(inside)
            case "cluster", False:
                return self.name.startswith(inside)
        return False

    def __str__(self) -> str:
        """Return the rule as it is written to be added again."""
        how = (" --prefix" if self.name else " --everything") if self.is_prefix else ""
        return f"{','.join(self.verbs)} {self.kind} {self.name}".rstrip() + how


#: What `ADMIN` may do: everything, by whatever verb.
_EVERYTHING = tuple(Rule(get_args(Verb), kind, "", True) for kind in get_args(Kind))


class Grant(NamedTuple):
    """What allows something: a rule of a role."""

    role: str
    rule: Rule


def authorize(
    roles: Iterable[tuple[str, Iterable[Rule]]], verb: Verb, kind: Kind, name: str
) -> Grant | None:
    """Return what allows a principal that has these roles, with their rules, to do the verb with
    the resource of this kind and full name; None if nothing does.

    Whoever may do anything with a topic, or with a cluster of it, may have that topic described.
    """
    for role, rules in roles:
        for rule in _EVERYTHING if role == ADMIN else rules:
            if rule.covers(verb, kind, name):
                return Grant(role, rule)
            if verb == "describe" and kind == "topic" and rule.concerns(name):
                return Grant(role, rule)
    return None


def authorize_any(
    roles: Iterable[tuple[str, Iterable[Rule]]], verb: Verb, kind: Kind, topic: str = ""
) -> Grant | None:
    """Return what allows the verb with any resource of a kind; with a `topic`, with that, or with
    any cluster of it. None if nothing does.
    """
    for role, rules in roles:
        for rule in _EVERYTHING if role == ADMIN else rules:
            if rule.kind == kind and verb in rule.verbs and (not topic or rule.concerns(topic)):
                return Grant(role, rule)
    return None


# -- names and rules that users give -------------------------------------------------------------


def topic_name(namespace: str, topic: str) -> str:
    """Return a topic's full name as rules have it: its namespace is always there."""
    return f"{namespace}/{topic}"


def cluster_name(topic: str, cluster: str) -> str:
    """Return the full name of a cluster of the topic of this full name."""
    return f"{topic}{OF_TOPIC}{cluster}"


def resource_name(kind: str, name: str) -> str:
    """Return the full name of what a user names: `[NAMESPACE/]TOPIC`, `[NAMESPACE/]TOPIC:CLUSTER`,
    `NAMESPACE`, or nothing for the system. Raises `BadName` or `BadRequest`.
    """
    match kind:
        case "topic":
            return topic_name(*split_name(name))
        case "cluster":
            topic, separator, cluster = name.partition(OF_TOPIC)
            if not separator:
                raise BadName(f"cluster {name[:300]!r}: name its topic as well, as TOPIC:CLUSTER")
            full = topic_name(*split_name(topic))
            return cluster_name(full, check_name(cluster, "cluster"))
        case "namespace":
            return check_name(name, "namespace")
        case "system":
            if name not in ("", "system"):
                raise BadName(f"there is one system, without a name: leave out {name[:300]!r}")
            return ""
    raise BadRequest(f"kind {kind[:30]!r}: give {', '.join(VERBS)}")


def make_rule(verbs: Sequence[str], kind: str, name: str, is_prefix: bool) -> Rule:
    """Return the rule that a user writes. An empty `name` with `is_prefix` is everything of this
    kind. Raises `BadName` or `BadRequest`, which say what to write.
    """
    if kind not in VERBS:
        raise BadRequest(f"kind {kind[:30]!r}: give {', '.join(VERBS)}")
    unknown = [verb for verb in verbs if verb not in VERBS[kind]]
    if unknown or not verbs:
        said = f"verb {unknown[0][:30]!r}" if unknown else "no verb"
        raise BadRequest(f"{said}: with a {kind} there is {', '.join(VERBS[kind])}")
    full = _beginning(kind, name) if is_prefix else resource_name(kind, name)
    return Rule(tuple(sorted(set(verbs))), kind, full, is_prefix)


def _beginning(kind: str, name: str) -> str:
    """Return the full beginning that a user names. Raises `BadName`.

    Without a slash it is one of the default namespace, as a topic's name would be.
    """
    if not name:
        return ""
    if kind == "system":
        raise BadName("there is one system: leave out --prefix")
    if kind == "namespace":
        return _checked(name, name)
    namespace, slash, rest = name.rpartition("/")
    full = check_name(namespace if slash else DEFAULT_NAMESPACE, "namespace")
    topic, separator, cluster = rest.partition(OF_TOPIC)
    if separator and kind == "topic":
        raise BadName(f"prefix {name[:300]!r} is of clusters: give the kind cluster")
    if separator:
        check_name(topic, "topic")
    return f"{full}/{_checked(topic, name)}{separator}{_checked(cluster, name)}"


def _checked(part: str, name: str) -> str:
    if not _BEGINNING.fullmatch(part):
        raise BadName(f"prefix {name[:300]!r} has characters that no name has: * is none either")
    return part


def read_rule(row: Any) -> Rule:
    """Return a rule from a stored row."""
    verbs, kind, name, is_prefix = row
    return Rule(tuple(verbs), kind, name, is_prefix)
