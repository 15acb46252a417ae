"""The roles of a transaction file's columns, by the names that known files use.

Called by ``data``; looks at names only, not at values.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ROLES", "ColumnNames", "layout_of"]

ROLES = (
    "edge_id",
    "source",
    "target",
    "timestamp",
    "source_bank",
    "target_bank",
    "amounts",
    "label",
)
_NEEDED = ("source", "target", "timestamp")

# Names after ``_plain``; the first one present in a table wins.  IBM AML (readers number its
# two columns named Account), AMLSim's samples and full output, SNAP copies.
_KNOWN: dict[str, tuple[str, ...]] = {
    "edge_id": ("edgeid", "transactionid", "txid"),
    "source": (
        "source",
        "fromaccount",
        "fromaccountid",
        "account",
        "sourcenodeid",
        "senderaccountid",
        "nameorig",
        "sender",
        "src",
    ),
    "target": (
        "target",
        "toaccount",
        "toaccountid",
        "account1",
        "account2",
        "targetnodeid",
        "receiveraccountid",
        "namedest",
        "receiver",
        "dst",
    ),
    "timestamp": ("timestamp", "time", "step"),
    "source_bank": ("frombank", "frombankid", "sourcebank"),
    "target_bank": ("tobank", "tobankid", "targetbank"),
    "label": ("islaundering", "isfraud", "label"),
}
_AMOUNTS = (
    "amountreceived",
    "amountpaid",
    "amount",
    "txamount",
    "value",
    "rating",
    "weight",
)
# The columns of a file without a header, by the number of columns.
_NAMELESS = {
    3: ("source", "target", "timestamp"),
    4: ("source", "target", "weight", "timestamp"),
}
# Source columns of tables whose times are steps of a day.
_STEPPED = frozenset({"sourcenodeid", "senderaccountid", "nameorig"})
DAY_SECONDS = 86_400
# PaySim's steps are hours.
_STEP_SECONDS = {"nameorig": 3_600}


@dataclasses.dataclass(frozen=True)
class ColumnNames:
    """Names of the columns by role; None or empty where a table has no such column."""

    source: str
    target: str
    timestamp: str
    edge_id: str | None = None
    source_bank: str | None = None
    target_bank: str | None = None
    amounts: tuple[str, ...] = ()
    label: str | None = None
    time_unit: int = 1
    """Seconds of one unit of a timestamp that is a number."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns with a role, each once."""
        single = (
            self.edge_id,
            self.source_bank,
            self.source,
            self.target_bank,
            self.target,
            self.timestamp,
            self.label,
        )
        return tuple(dict.fromkeys([*(name for name in single if name), *self.amounts]))


def layout_of(
    names: Sequence[str],
    chosen: Mapping[str, object] | None = None,
    *,
    has_header: bool = True,
    time_unit: int | None = None,
) -> ColumnNames:
    """Find the roles of the columns.

    Args:
        names: of all columns, unique.
        chosen: role to name (or number) of the column; ``amounts`` takes several.  Roles that
            are not chosen are found by name; None: there is no such column.
        has_header: whether the names come from the table itself.
        time_unit: seconds of a unit of numeric timestamps; None is a day for AMLSim, else 1.

    Raises:
        ValueError: a role or column is unknown, or a required one was not found.
    """
    found = _found(names, has_header)
    for role, column in (chosen or {}).items():
        if role not in ROLES:
            raise ValueError(f"{role!r} is no role of a column; there are {', '.join(ROLES)}")
        found[role] = _chosen(names, role, column)
    missing = [role for role in _NEEDED if not found.get(role)]
    if missing:
        raise ValueError(
            f"which column is {missing[0]}? There are: {', '.join(names)}. Say it by"
            f" columns={{{missing[0]!r}: name or number}}, or --columns {missing[0]}=NAME"
        )
    if (found.get("source_bank") is None) != (found.get("target_bank") is None):
        raise ValueError("source_bank and target_bank: only one of the two is a column")
    if time_unit is None:
        plain = _plain(str(found["source"]))
        time_unit = _STEP_SECONDS.get(plain, DAY_SECONDS) if plain in _STEPPED else 1
    elif time_unit < 1:
        raise ValueError(f"time_unit is {time_unit} s; it must be 1 or more")
    found.setdefault("amounts", ())
    return ColumnNames(time_unit=time_unit, **found)  # type: ignore[arg-type]


def _found(names: Sequence[str], has_header: bool) -> dict[str, object]:
    """Columns with known names."""
    if not has_header:
        if len(names) not in _NAMELESS:
            return {}
        roles = dict(zip(_NAMELESS[len(names)], names, strict=True))
        weight = roles.pop("weight", None)
        return {**roles, "amounts": () if weight is None else (weight,)}
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(_plain(name), name)
    found: dict[str, object] = {}
    for role, known in _KNOWN.items():
        found[role] = next((plain[name] for name in known if name in plain), None)
    found["amounts"] = tuple(plain[name] for name in _AMOUNTS if name in plain)
    return found


def _chosen(names: Sequence[str], role: str, column: object) -> object:
    """The name or names that the caller chose for a role."""
    if role == "amounts":
        several = [column] if isinstance(column, (str, int)) else list(column or ())  # type: ignore[call-overload]
        return tuple(_name(names, role, item) for item in several)
    return None if column is None else _name(names, role, column)


def _name(names: Sequence[str], role: str, column: object) -> str:
    if isinstance(column, str) and column in names:
        return column
    if isinstance(column, int) and 0 <= column < len(names):
        return names[column]
    raise ValueError(f"{role}: there is no column {column!r} in {', '.join(names)}")


def _plain(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
