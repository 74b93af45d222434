"""As whom a query asks: names in options and plans, passwords where tasks run, logins by both."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir import sync, testing
from weir.client.access import AccessRule
from weir.client.connection.credentials import PASSWORD, PASSWORD_FILE
from weir.errors import BadOption, NotAuthenticated, UnknownTopic
from weir.spark import blocking_client, login
from weir.spark.blocking_client import ask, forget_all, nearest, toward
from weir.spark.fetcher import record_batches
from weir.spark.login import Login, LoginHosts, alike, credentials_of, hosts_of
from weir.spark.options import Latest, Options
from weir.spark.sink import writer
from weir.spark.sink.options import SinkOptions
from weir.spark.topics import topics_of
from weir.tls.dialling import SecureHost

SECRET = "s3cret-of-ann"
PLACES = (("a", 1), ("b", 6800))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (PASSWORD, PASSWORD_FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(login, "_found", {})
    yield
    forget_all()
    writer.forget_all()


@pytest.fixture
def url() -> Iterator[str]:
    """Return the address of a closed set, where ann may read t and write to u."""
    with testing.node() as node:
        with sync.connect(node.url) as w:
            for name in ("t", "u", "v"):
                w.create_topic(name)
            w.publish("t", b"a")
            w.access.create_user("root", "rr", ["admin"])
            rules = [AccessRule(("read",), "topic", "t"), AccessRule(("publish",), "topic", "u")]
            w.access.change_rules("query", rules)
            w.access.create_user("ann", SECRET, ["query"])
        with sync.connect(of(node.url, "root"), password="rr") as w:
            w.access.set_mode("closed")
        yield node.url


def of(url: str, user: str) -> str:
    return url.replace("//", f"//{user}@")


# -- options ---------------------------------------------------------------------------------------


def test_a_user_is_of_the_url_or_an_option() -> None:
    assert hosts_of({"url": "weir://a:1,b"}) == PLACES
    ann = LoginHosts(PLACES, Login("ann"))
    assert hosts_of({"url": "weir://ann@a:1,b"}) == ann
    assert hosts_of({"url": "weir://a:1,b", "user": "ann"}) == ann
    assert hosts_of({"url": "weir://ann@a:1,b", "user": "ann"}) == ann
    assert hosts_of({"host": "h", "user": "shop/ann", "passwordfile": "/p"}) == LoginHosts(
        [("h", 6800)], Login("shop/ann", "/p")
    )
    for kind in (Options, SinkOptions):
        given = {"topic": "t", "URL": "weir://a:1,b", "User": "ann", "passwordFile": "/p"}
        assert kind.parse(given).hosts == LoginHosts(PLACES, Login("ann", "/p"))


def test_files_of_tls_are_options_too() -> None:
    given = {
        "url": "weirs://ann@a?ca=c.pem",
        "certificate": "me & you.pem",
        "key": "k.pem",
        "servername": "broker",
    }
    ((host, port),) = hosts_of(given)
    assert isinstance(host, SecureHost)
    assert (host, port) == (host, 6800)
    assert host.files == ("c.pem", "me & you.pem", "k.pem", "broker")
    ((other, _),) = hosts_of({"url": "weirs://a", "ca": "c.pem"})
    assert isinstance(other, SecureHost)
    assert other.files.ca == "c.pem"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"url": f"weir://ann:{SECRET}@a"}, "an address has no password"),
        ({"password": SECRET}, "a password is no option"),
        ({"Token": SECRET}, "a token is no option"),
        ({"url": "weir://ann@a", "user": "bob"}, "the url names user ann"),
        ({"passwordFile": "/p"}, "needs a user"),
        ({"url": "weir://a", "ca": "c.pem"}, "option ca is of TLS"),
        ({"url": "weirs://a?ca=x", "ca": "y"}, "ca needs a value, once"),
        ({"url": "weirs://a", "certificate": "y"}, "belong together"),
        ({"url": "weir://@a"}, "names no user"),
    ],
)
def test_what_cannot_be_is_told_without_the_secret(given: dict[str, str], text: str) -> None:
    for kind in (Options, SinkOptions):
        with pytest.raises(BadOption, match=text) as caught:
            kind.parse({"topic": "t", **given})
        assert SECRET not in str(caught.value)


def test_hosts_of_a_user_are_no_others() -> None:
    ann, bob = LoginHosts(PLACES, Login("ann")), LoginHosts(PLACES, Login("bob"))
    assert len({PLACES, ann, bob, LoginHosts(PLACES, Login("ann"))}) == 3
    assert ann != PLACES
    assert ann != PLACES
    assert LoginHosts(PLACES, Login("ann", "/p")) != ann
    assert pickle.loads(pickle.dumps(ann)) == ann
    assert alike(PLACES[:1], ann) == LoginHosts(PLACES[:1], Login("ann"))
    assert alike(PLACES[:1], PLACES) == PLACES[:1]


# -- passwords -------------------------------------------------------------------------------------


def test_each_process_finds_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    file.chmod(0o600)
    ann, by_file = LoginHosts(PLACES, Login("ann")), LoginHosts(PLACES, Login("ann", str(file)))
    assert credentials_of(PLACES) is None
    with pytest.raises(BadOption, match="each machine that runs tasks"):
        credentials_of(ann)
    made = credentials_of(by_file)
    assert made is not None
    assert made is credentials_of(by_file)
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    assert credentials_of(ann) is not None
    for hosts in (ann, by_file):
        options = Options("t", hosts)
        assert SECRET.encode() not in pickle.dumps(options)
        assert SECRET not in repr(options)
    file.chmod(0o644)
    login.forget_credentials(by_file)
    with pytest.raises(BadOption, match="chmod 600"):
        credentials_of(by_file)


# -- a closed set ----------------------------------------------------------------------------------


def test_a_query_reads_and_writes_as_its_user(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    for read_from in ("leader", "nearest", "url"):
        given = {"topic": "t", "url": of(url, "ann"), "readFrom": read_from}
        options = Options.parse(given)
        topics = topics_of(options)
        begin, end = topics.begin(options.starting), topics.until(Latest())
        values = [
            value
            for portion in topics.portions(begin, end)
            for batch in record_batches(portion, 1 << 20)
            for value in batch.column("value").to_pylist()
        ]
        assert values == [b"a"], read_from
        forget_all()
    hosts = SinkOptions.parse({"topic": "u", "url": of(url, "ann")}).hosts
    assert writer.client_of(hosts).publish("u", b"b").offset == 0
    with pytest.raises(UnknownTopic):
        ask(hosts, lambda client: client.describe("v"))


def test_where_partitions_are_is_asked_as_the_same_user(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    hosts = hosts_of({"url": of(url, "ann")})
    info = ask(hosts, lambda client: client.describe("t"))
    found = [toward(hosts, info.addresses[0]), nearest(hosts)]
    assert all(isinstance(one, LoginHosts) and one.login == Login("ann") for one in found)


def test_a_wrong_password_is_looked_for_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = hosts_of({"url": of(url, "ann")})
    monkeypatch.setenv(PASSWORD, "wrong")
    with pytest.raises(NotAuthenticated, match="user ann"):
        ask(hosts, lambda client: client.describe("t"))
    monkeypatch.setenv(PASSWORD, SECRET)
    assert ask(hosts, lambda client: client.describe("t")).id
    with pytest.raises(NotAuthenticated, match="log in"):
        ask(hosts_of({"url": url}), lambda client: client.describe("t"))


def test_tasks_of_a_revoked_user_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    options = Options.parse({"topic": "t", "url": of(url, "ann")})
    topics = topics_of(options)
    work = topics.portions(topics.begin(options.starting), topics.until(Latest()))
    assert next(record_batches(work[0], 1 << 20)).num_rows == 1
    with sync.connect(of(url, "root"), password="rr") as w:
        assert w.access.revoke_user("ann").unreached == ()
    with pytest.raises(NotAuthenticated, match="user ann"):
        next(record_batches(work[0], 1 << 20))


def test_no_password_goes_over_a_network_in_plain_text(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    monkeypatch.setattr(blocking_client, "is_private", lambda _: False)
    with pytest.raises(NotAuthenticated, match="need TLS"):
        ask(hosts_of({"url": of(url, "ann")}), lambda client: client.describe("t"))
