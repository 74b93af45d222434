"""Control records of the registry about how much namespaces and principals may use."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weir.model.limits import QUOTA_LIMIT_MAX

Limit = Annotated[int, Meta(ge=0, le=QUOTA_LIMIT_MAX)]


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A control record of quotas."""


class QuotaSet(_Record, frozen=True, array_like=True, tag="quota"):
    """Registry: a namespace or principal has these limits from now on, by the names of the quotas;
    those with None end, and those that are not named stay.
    """

    entity: str
    limits: tuple[tuple[str, Limit | None], ...]


class QuotaRemoved(_Record, frozen=True, array_like=True, tag="quota-removed"):
    """Registry: a namespace or principal has no quotas any more."""

    entity: str


QuotaRecord = QuotaSet | QuotaRemoved
