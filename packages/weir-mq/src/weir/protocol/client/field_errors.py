"""What is wrong with a control body, in the words of whoever filled it in."""

from __future__ import annotations

import re
from typing import Any

#: How msgspec points into an array: "Expected `int` >= 0 - at `$[1]`".
_PLACE = re.compile(r"(?P<what>.*) - at `\$\[(?P<field>\d+)\](?P<rest>.*)`", re.DOTALL)


def complaint(kind: type[Any], error: Exception) -> str:
    """Return the decoder's complaint with the field's name in place of its number."""
    found = _PLACE.fullmatch(str(error))
    fields = kind.__struct_fields__
    if found is None or int(found["field"]) >= len(fields):
        return f"{kind.__name__}: {error}"
    name = fields[int(found["field"])] + found["rest"]
    return f"{kind.__name__}: {name}: {found['what']}"
