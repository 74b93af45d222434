"""Requests and replies about quotas, as tests draw them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from weir.model.limits import QUOTA_LIMIT_MAX
from weir.protocol.client import quotas as q
from weir.protocol.client.declaration import opcode_of

NATURAL, SHORT_NAME = st.integers(0, (1 << 63) - 1), st.text(max_size=512)
QUOTA = st.text(max_size=32)
SHARE = st.none() | NATURAL
RATE = st.none() | st.tuples(NATURAL, st.booleans(), NATURAL)
LIMITS = st.lists(st.tuples(QUOTA, NATURAL), max_size=3).map(tuple)

REQUESTS: dict[type[Any], st.SearchStrategy[Any]] = {
    q.SetQuota: st.builds(
        q.SetQuota,
        SHORT_NAME,
        st.lists(st.tuples(QUOTA, st.none() | st.integers(0, QUOTA_LIMIT_MAX)), max_size=3).map(
            tuple
        ),
    ),
    q.RemoveQuota: st.builds(q.RemoveQuota, SHORT_NAME),
    q.ListQuotas: st.builds(q.ListQuotas, SHORT_NAME),
    q.ReportUsage: st.builds(
        q.ReportUsage,
        st.lists(
            st.builds(
                q.UsageRow,
                SHORT_NAME,
                NATURAL,
                NATURAL,
                NATURAL,
                NATURAL,
                st.tuples(RATE, RATE, RATE),
            ),
            max_size=3,
        ).map(tuple),
    ),
}
#: By kind, the opcode that it answers.
REPLIES: dict[type[Any], tuple[int, st.SearchStrategy[Any]]] = {
    q.QuotaChanged: (
        opcode_of(q.SetQuota),
        st.builds(q.QuotaChanged, st.builds(q.QuotaRow, SHORT_NAME, LIMITS)),
    ),
    q.QuotaList: (
        opcode_of(q.ListQuotas),
        st.builds(
            q.QuotaList,
            st.lists(st.builds(q.QuotaUse, SHORT_NAME, LIMITS, LIMITS, NATURAL), max_size=3),
            st.booleans(),
        ),
    ),
    q.UsageShares: (
        opcode_of(q.ReportUsage),
        st.builds(
            q.UsageShares,
            st.lists(
                st.builds(
                    q.ShareRow,
                    SHORT_NAME,
                    NATURAL,
                    NATURAL,
                    NATURAL,
                    st.tuples(SHARE, SHARE, SHARE),
                ),
                max_size=3,
            ).map(tuple),
        ),
    ),
}
