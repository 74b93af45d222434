"""Authorization: one pure decision, and the rules that it uses.

A role has rules; users have roles. A rule allows verbs with a kind of resource that has exactly a
name, or begins with one. Nothing is denied by a rule and nothing is a pattern, so that no rule can
be overridden on a second path: what no rule allows is refused.

Names are written as `Kind` says, with the namespace always in front, so that the beginning of a
name never reaches into another namespace; only an empty beginning, which must be asked for, does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from weir.errors import BadName, BadRequest
from weir.model.limits import NAME_CHARACTERS_MAX
from weir.model.topic import DEFAULT_NAMESPACE, RESERVED_NAMESPACE, check_name, split_name
from weir.protocol.client.declaration import Kind, Verb, rights_there_are
from weir.protocol.client.messages import REQUESTS

#: The role that may do everything, in this release and all later ones; it cannot be changed.
ADMIN = "admin"
#: What separates the name of a cluster from that of its topic; no name has it in it.
OF_TOPIC = ":"
#: The verbs that there are, by kind of resource.
VERBS: Mapping[str, tuple[Verb, ...]] = dict(rights_there_are(REQUESTS).items())
#: What names of the brokers' own topics begin with: only rules that say so reach there.
_RESERVED = f"{RESERVED_NAMESPACE}/"
_BEGINNING = re.compile(rf"[A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX}}}")


class Rule(NamedTuple):
    """Allows each of `verbs` with the resources of a kind that have this name, or, with
    `is_prefix`, that have a name beginning so.
    """

    verbs: tuple[str, ...]
    kind: str
    name: str
    is_prefix: bool = False

    def names(self, topic: str) -> bool:
        """Return whether it names exactly a topic, or a cluster of it."""
        if self.is_prefix or self.kind not in ("topic", "cluster"):
            return False
        return self.name == topic or self.name.startswith(topic + OF_TOPIC)

    def __str__(self) -> str:
        """Return the rule as it is written to be added again."""
        how = (" --prefix" if self.name else " --everything") if self.is_prefix else ""
        return f"{','.join(self.verbs)} {self.kind} {self.name}".rstrip() + how


class _Names:
    """Rules by kind and by a name, or by the beginning of one. What is found for a name costs a
    look-up for each length that beginnings have, however many rules there are.
    """

    __slots__ = ("_beginnings", "_exact", "_lengths", "_reaches_reserved")

    def __init__(self, reaches_reserved: bool) -> None:
        """Begin empty. Unless it `reaches_reserved` names, an empty beginning is none of theirs."""
        self._reaches_reserved = reaches_reserved
        self._exact: dict[tuple[str, str], list[Rule]] = {}
        self._beginnings: dict[tuple[str, str], list[Rule]] = {}
        self._lengths: dict[str, set[int]] = {}

    def add(self, rule: Rule, name: str, is_prefix: bool) -> None:
        """Let a rule be found for `name`, or for all names that begin so."""
        rules = self._beginnings if is_prefix else self._exact
        rules.setdefault((rule.kind, name), []).append(rule)
        if is_prefix:
            self._lengths.setdefault(rule.kind, set()).add(len(name))

    def find(self, kind: str, name: str) -> Iterator[Rule]:
        """Yield the rules of a kind that were added for a name."""
        yield from self._exact.get((kind, name), ())
        least = 0 if self._reaches_reserved or not name.startswith(_RESERVED) else 1
        for length in self._lengths.get(kind, ()):
            if least <= length <= len(name):
                yield from self._beginnings.get((kind, name[:length]), ())


class RoleRules:
    """The rules of one role. A list of topics asks what each is allowed to, and a user may have
    64,000 rules: so they are found by the name that is asked for, and never tried one by one.
    """

    __slots__ = ("_of_resources", "_of_topics", "_rules")

    def __init__(self, rules: Iterable[Rule] = (), reaches_reserved: bool = False) -> None:
        """Take the rules, which never change: a role with others has another of these. What allows
        everything of a kind allows nothing of the brokers' own, unless it `reaches_reserved`.
        """
        self._rules = tuple(rules)
        self._of_resources = _Names(reaches_reserved)
        self._of_topics = _Names(reaches_reserved)
        for rule in self._rules:
            self._of_resources.add(rule, rule.name, rule.is_prefix)
            if rule.kind == "topic":
                self._of_topics.add(rule, rule.name, rule.is_prefix)
            elif rule.kind == "cluster":
                # Behind the name of a topic a rule speaks of clusters of that topic alone.
                topic, separator, _ = rule.name.partition(OF_TOPIC)
                if separator or rule.is_prefix:
                    self._of_topics.add(rule, topic, not separator)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def covering(self, verb: str, kind: str, name: str) -> Rule | None:
        """Return a rule that allows the verb with a resource; None if none does."""
        found = self._of_resources.find(kind, name)
        return next((rule for rule in found if verb in rule.verbs), None)

    def concerning(self, topic: str) -> Rule | None:
        """Return a rule that allows anything with a topic, or with a cluster of it that may be
        there; None if none does: so much must be known of the topic.
        """
        both = (rule for kind in ("topic", "cluster") for rule in self._of_topics.find(kind, topic))
        return next(both, None)

    def covering_any(self, verb: str, kind: str, topic: str) -> Rule | None:
        """Return a rule that allows the verb with any resource of a kind; with a `topic`, with
        that, or with any cluster of it. None if none does.
        """
        found = self._of_topics.find(kind, topic) if topic else iter(self._rules)
        return next((rule for rule in found if rule.kind == kind and verb in rule.verbs), None)


#: What `ADMIN` may do: everything, by whatever verb.
_EVERYTHING = RoleRules(
    (Rule(get_args(Verb), kind, "", True) for kind in get_args(Kind)), reaches_reserved=True
)
#: Roles, by name.
Roles = Iterable[tuple[str, RoleRules]]


class Grant(NamedTuple):
    """What allows something: a rule of a role."""

    role: str
    rule: Rule


def authorize(roles: Roles, verb: Verb, kind: Kind, name: str) -> Grant | None:
    """Return what allows a principal that has these roles, with their rules, to do the verb with
    the resource of this kind and full name; None if nothing does.

    Those that may do anything with a topic, or with a cluster of it, may have it described.
    """
    for role, given in roles:
        rules = _EVERYTHING if role == ADMIN else given
        found = rules.covering(verb, kind, name)
        if found is None and verb == "describe" and kind == "topic":
            found = rules.concerning(name)
        if found is not None:
            return Grant(role, found)
    return None


def authorize_any(roles: Roles, verb: Verb, kind: Kind, topic: str = "") -> Grant | None:
    """Return what allows the verb with any resource of a kind; with a `topic`, with that, or with
    any cluster of it. None if nothing does.
    """
    for role, given in roles:
        rules = _EVERYTHING if role == ADMIN else given
        found = rules.covering_any(verb, kind, topic)
        if found is not None:
            return Grant(role, found)
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
    `NAMESPACE`, that of a BrokerSet, or nothing for the system. Raises `BadName` or `BadRequest`.
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
        case "namespace" | "set":
            return check_name(name, kind)
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
    if kind in ("namespace", "set"):
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
