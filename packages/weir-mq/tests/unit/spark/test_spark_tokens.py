"""Tasks that read get a token from the driver: which one, for what, and for how long."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from rigs.tokens import renewals_of
from weir import sync, testing
from weir.client.access import AccessRule
from weir.client.connection.credentials import PASSWORD, PASSWORD_FILE, TokenCredentials
from weir.client.connection.system import SYSTEM
from weir.errors import BadOption, NotAuthenticated, RemoteProtocolError, UnknownTopic
from weir.protocol.client.access import LoginStep
from weir.spark import login, tokens
from weir.spark.blocking_client import ask, forget_all
from weir.spark.fetcher import Portion, record_batches
from weir.spark.login import LoginHosts
from weir.spark.options import Latest, Options
from weir.spark.source import Task, tasks
from weir.spark.topics import topics_of

SECRET = "s3cret-of-ann"
#: When half of a token is over, and a bit, because sums of floats are rounded.
LATER = tokens.RENEWED_AFTER_SECONDS + 0.5


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(PASSWORD_FILE, raising=False)
    monkeypatch.setenv(PASSWORD, SECRET)
    for module, name in ((login, "_found"), (tokens, "_issued"), (tokens, "_topics")):
        monkeypatch.setattr(module, name, {})
    monkeypatch.setattr(tokens, "_ids", {os.getpid(): "spark-test"})  # and so no thread
    yield
    forget_all()


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


@pytest.fixture
def url(node: testing.Node) -> str:
    """Return the address of a closed set that issues tokens, where ann may read three topics."""
    with sync.connect(node.url) as w:
        for name in ("t", "u", "shop/v"):
            w.create_topic(name)
            w.publish(name, name.encode())
        w.access.create_user("root", "rr", ["admin"])
        read = [AccessRule(("read",), "topic", name) for name in ("t", "u", "shop/v")]
        w.access.change_rules("query", read)
        w.access.create_user("ann", SECRET, ["query"])
        w.access.create_token_key()
    with sync.connect(of(node.url, "root"), password="rr") as w:
        w.access.set_mode("closed")
    return node.url


def of(url: str, user: str) -> str:
    return url.replace("//", f"//{user}@")


def planned(options: Options) -> list[Portion]:
    """Return the work of the tasks of a read of all there is."""
    topics = topics_of(options)
    portions = topics.portions(topics.begin(options.starting), topics.until(Latest()))
    return [
        one for task in tasks(portions, options) if isinstance(task, Task) for one in task.portions
    ]


def values(portions: list[Portion]) -> list[bytes]:
    return [
        value
        for portion in portions
        for batch in record_batches(portion, 1 << 20)
        for value in batch.column("value").to_pylist()
    ]


def login_of(portion: Portion) -> login.Login:
    assert isinstance(portion.source.hosts, LoginHosts)
    return portion.source.hosts.login


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be another machine from here on, which knows no password."""
    monkeypatch.delenv(PASSWORD)
    login._found.clear()
    forget_all()


def test_a_task_reads_by_a_token_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options.parse({"topic": "t", "url": of(url, "ann")})
    sent = pickle.dumps(planned(options))
    assert SECRET.encode() not in sent
    elsewhere(monkeypatch)
    work = pickle.loads(sent)
    assert values(work) == [b"t"]
    with pytest.raises(BadOption, match="weir token key add"):
        ask(options.hosts, lambda client: client.describe("t"))


def test_nothing_shows_a_token(url: str) -> None:
    options = Options.parse({"topic": "t", "url": of(url, "ann")})
    work = planned(options)
    token = login_of(work[0]).token
    assert token.startswith("eyJ")
    assert token not in repr(tasks(work, options)) + repr(login_of(work[0]))
    assert token.encode() not in pickle.dumps(options)


def test_a_task_is_told_of_no_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    file.chmod(0o600)
    given = {"topic": "t", "url": of(url, "ann"), "passwordFile": str(file)}
    work = planned(Options.parse(given))
    assert str(file).encode() not in pickle.dumps(work)
    file.unlink()
    assert values(work) == [b"t"]


def test_a_token_is_shown_to_a_broker_alone_that_nobody_listens_to() -> None:
    asked: list[object] = []

    def answer(request: object) -> LoginStep:
        asked.append(request)
        return LoginStep(b"", False, "default/ann")

    credentials = TokenCredentials("a.b.c", "ann")
    with pytest.raises(NotAuthenticated, match="need TLS"):
        credentials.log_in_blocking(answer, False)
    assert not asked
    with pytest.raises(RemoteProtocolError, match="did not log in"):
        credentials.log_in_blocking(answer, True)
    for source in (Path("a"), lambda: "a.b.c"):
        with pytest.raises(NotAuthenticated, match="takes its token as text"):
            TokenCredentials(source).log_in_blocking(answer, True)


def test_it_is_good_for_the_topics_of_the_query_alone(url: str) -> None:
    options = Options.parse({"topics": '["t", "shop/*"]', "url": of(url, "ann")})
    work = planned(options)
    assert login_of(work[0]).topics == ("shop/v", "t")
    assert sorted(values(work)) == [b"shop/v", b"t"]
    hosts = work[0].source.hosts
    assert ask(hosts, lambda client: client.describe("shop/v")).id
    with pytest.raises(UnknownTopic):
        ask(hosts, lambda client: client.describe("u"))
    assert ask(options.hosts, lambda client: client.describe("u")).id, "ann herself may"


def test_a_part_of_the_topics_is_no_other_token(url: str) -> None:
    options = Options.parse({"topics": '["t", "u"]', "url": of(url, "ann")})
    work = planned(options)
    one = [part for part in work if part.source.topic == "u"]
    assert tokens.with_tokens(one, options)[0].source.hosts == work[0].source.hosts
    assert len(tokens._issued) == 1


def test_planning_renews_it_when_half_of_it_is_over(url: str) -> None:
    options = Options.parse({"topic": "t", "url": of(url, "ann")})
    clock = [1_000.0]
    before = SYSTEM.set(replace(SYSTEM.get(), monotonic=lambda: clock[0]))
    try:
        first = planned(options)
        clock[0] += tokens.RENEWED_AFTER_SECONDS - 1
        assert login_of(planned(options)[0]).token == login_of(first[0]).token
        assert next(iter(tokens._issued.values())).planned == clock[0], "the query still runs"
        clock[0] += 1
        tokens._ids[os.getpid()] = (
            "spark-other"  # so that it is another one within the same second, too
        )
        second = planned(options)
    finally:
        SYSTEM.reset(before)
    assert login_of(second[0]).token != login_of(first[0]).token
    # A connection that came by the first is used on.
    assert second[0].source.hosts == first[0].source.hosts


def test_a_set_that_issues_none_is_asked_again_later(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.connect(of(url, "root"), password="rr") as w:
        w.access.remove_token_key()
        options = Options.parse({"topic": "t", "url": of(url, "ann")})
        clock = [1_000.0]
        before = SYSTEM.set(replace(SYSTEM.get(), monotonic=lambda: clock[0]))
        try:
            assert planned(options)[0].source.hosts == options.hosts
            w.access.create_token_key()
            assert not login_of(planned(options)[0]).token
            clock[0] += tokens.ASKED_AGAIN_SECONDS
            assert login_of(planned(options)[0]).token
        finally:
            SYSTEM.reset(before)


def test_a_new_password_means_a_new_token(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options.parse({"topic": "t", "url": of(url, "ann")})
    first = planned(options)
    with sync.connect(of(url, "root"), password="rr") as w:
        w.access.set_password("ann", "another")
    monkeypatch.setenv(PASSWORD, "another")
    login._found.clear()
    second = planned(options)
    elsewhere(monkeypatch)
    with pytest.raises(NotAuthenticated):
        values(first)
    assert values(second) == [b"t"]


def test_a_revoked_user_has_no_token_any_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options.parse({"topic": "t", "url": of(url, "ann")})
    work = planned(options)
    assert values(work) == [b"t"]
    with sync.connect(of(url, "root"), password="rr") as w:
        w.access.revoke_user("ann")
    with pytest.raises(NotAuthenticated):
        values(work)
    with pytest.raises(NotAuthenticated):
        planned(options)


def test_nobody_has_no_token() -> None:
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("t")
            w.publish("t", b"t")
        options = Options.parse({"topic": "t", "url": node.url})
        work = planned(options)
        assert work[0].source.hosts == options.hosts
        assert values(work) == [b"t"]
        assert not tokens._issued


def test_a_thread_renews_what_tasks_came_by(url: str, node: testing.Node) -> None:
    options = Options.parse({"topic": "t", "url": of(url, "ann")})
    first = planned(options)
    ((key, until),) = renewals_of(node).items()
    assert key[0].startswith("user:default/ann#")
    ((_, had),) = tokens._issued.items()
    tokens.renew_due(had.since + tokens.RENEWED_AFTER_SECONDS - 1)
    assert next(iter(tokens._issued.values())) == had, "half of it is not over"
    # As if it had been issued a second sooner, for a token ends at a whole second.
    time.sleep(1.1)
    due = had.since + LATER
    tokens.renew_due(due)
    renewed = next(iter(tokens._issued.values()))
    assert (renewed.since, renewed.token != had.token) == (due, True)
    assert [*renewals_of(node)] == [key], "it renews the tokens of before"
    assert renewals_of(node)[key] > until
    assert values(first) == [b"t"]


def test_nothing_is_renewed_for_a_query_that_is_over(url: str, node: testing.Node) -> None:
    planned(Options.parse({"topic": "t", "url": of(url, "ann")}))
    ((_, had),) = tokens._issued.items()
    tokens.renew_due(had.planned + 24 * 3_600 + 1)
    assert next(iter(tokens._issued.values())) == had


def test_nothing_is_renewed_for_a_user_that_is_revoked(url: str) -> None:
    planned(Options.parse({"topic": "t", "url": of(url, "ann")}))
    ((_, had),) = tokens._issued.items()
    with sync.connect(of(url, "root"), password="rr") as w:
        w.access.revoke_user("ann")
    tokens.renew_due(had.since + LATER)
    assert not tokens._issued


def test_what_is_not_renewed_now_is_renewed_later(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned(Options.parse({"topic": "t", "url": of(url, "ann")}))
    ((key, had),) = tokens._issued.items()
    tokens._issued.clear()
    away = LoginHosts([("127.0.0.1", 1)], login.Login("ann"))
    tokens._issued[away, key[1]] = had
    tokens.renew_due(had.since + LATER)
    assert tokens._issued[away, key[1]] == had
    assert "tried again" in caplog.text
    assert had.token not in caplog.text
    # One host that answers is enough.
    both = LoginHosts([("127.0.0.1", 1), *key[0]], login.Login("ann"))
    tokens._issued.clear()
    tokens._issued[both, key[1]] = had
    tokens.renew_due(had.since + LATER)
    assert tokens._issued[both, key[1]].since > had.since


def test_a_renewal_replaces_no_token_of_a_newer_login(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(Options.parse({"topic": "t", "url": of(url, "ann")}))
    ((key, had),) = tokens._issued.items()
    newer = had._replace(token="newer", client=cast(Any, "another connection"))

    def meanwhile(*_: object) -> str:
        tokens._issued[key] = newer
        return "older"

    monkeypatch.setattr(tokens, "_renewed", meanwhile)
    tokens.renew_due(had.since + LATER)
    assert tokens._issued[key] == newer


def test_a_process_that_plans_has_one_thread_for_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(tokens, "_ids", {})
    quiet = replace(SYSTEM.get(), thread=lambda work, name: begun.append(name))
    before = SYSTEM.set(quiet)
    try:
        for topic in ("t", "u"):
            planned(Options.parse({"topic": topic, "url": of(url, "ann")}))
    finally:
        SYSTEM.reset(before)
    assert begun == ["weir tokens"]
