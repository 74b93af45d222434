"""Renewals of tokens: how many there may be, and what ends them."""

from __future__ import annotations

import pytest

from weir.access.signatures import Algorithm, PublicKey
from weir.broker.metadata.security.issuers import TokenIssuers
from weir.broker.records.security import TokenKeyRow, TokenKeysAdded, TokenRenewed
from weir.errors import TooLarge
from weir.model.limits import TOKEN_RENEWALS_OF_ONE_MAX

ANN, BOB = "user:shop/ann#1", "user:shop/bob#2"


def key(name: str) -> TokenKeyRow:
    return TokenKeyRow(PublicKey(name, Algorithm.EDDSA, bytes(32)), b"")


@pytest.fixture
def issuers() -> TokenIssuers:
    made = TokenIssuers()
    made.add(TokenKeysAdded("one", "weir", "shop", (key("first"), key("second")), False), 1)
    made.add(TokenKeysAdded("other", "weir", "shop", (key("first"),), False), 2)
    return made


def test_one_user_keeps_nobody_from_renewing(issuers: TokenIssuers) -> None:
    for number in range(TOKEN_RENEWALS_OF_ONE_MAX):
        issuers.renew(TokenRenewed(ANN, "one", f"job-{number}", 100, 10))
    with pytest.raises(TooLarge, match="of this user"):
        issuers.renew(TokenRenewed(ANN, "one", "one-more", 100, 10))
    issuers.renew(TokenRenewed(ANN, "one", "job-0", 200, 10))
    issuers.renew(TokenRenewed(BOB, "one", "job", 100, 10))
    assert issuers.renewed_until(ANN, "one", "job-0") == 200
    assert issuers.renewed_until(BOB, "one", "job") == 100
    issuers.renew(TokenRenewed(ANN, "one", "one-more", 300, 150))  # most have ended by now
    assert issuers.renewed_until(ANN, "one", "job-1") == 0


@pytest.mark.parametrize("removed", [True, False])
def test_what_a_key_that_is_gone_may_have_renewed_is_renewed_no_more(
    issuers: TokenIssuers, removed: bool
) -> None:
    issuers.renew(TokenRenewed(ANN, "one", "job", 1 << 40, 10))
    issuers.renew(TokenRenewed(ANN, "other", "job", 100, 10))
    if removed:
        issuers.remove("one", "second")
    else:
        issuers.add(TokenKeysAdded("one", "weir", "shop", (key("first"),), True), 3)
    assert issuers.renewed_until(ANN, "one", "job") == 0
    assert issuers.renewed_until(ANN, "other", "job") == 100


def test_another_key_ends_no_renewal(issuers: TokenIssuers) -> None:
    issuers.renew(TokenRenewed(ANN, "one", "job", 100, 10))
    issuers.add(TokenKeysAdded("one", "weir", "shop", (key("third"),), False), 3)
    assert issuers.renewed_until(ANN, "one", "job") == 100
