"""The demo's queries on a table, for three engines: pyarrow, DuckDB, polars.

For transfers the queries are the accounts with the largest volume, and the number of rows in each
hour of the day; for any other table, a summary of each column.  Roles of columns are guessed from
types and names.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BUCKETS", "ENGINES", "Answer", "Roles", "ask", "available_engine", "guess_roles"]

ENGINES = ("duckdb", "polars", "pyarrow")
TOP = 5
BUCKETS = 24
# Integers above this (March 1973) are seconds since 1970, smaller ones are steps.
_EPOCH_MIN = 100_000_000
_TIME_NAMES = ("timestamp", "time", "epoch", "date", "step")
_ACCOUNT_NAMES = ("fromaccount", "sourcenode", "source", "sender", "nameorig", "orig", "account")
_AMOUNT_NAMES = ("amountpaid", "amount", "value", "volume")


@dataclasses.dataclass(frozen=True)
class Roles:
    """Names of the columns with a role; without ``amount``, rows are counted.

    ``low`` and ``width`` bucket an integer time: bucket = (time - low) // width mod 24.
    """

    account: str
    time: str
    amount: str | None
    is_timestamp: bool
    low: int
    width: int

    def head(self) -> tuple[str, str]:
        """Titles of the two answers."""
        top = f"{self.account} by {'sum of ' + self.amount if self.amount else 'number of rows'}"
        is_hour = self.is_timestamp or self.width == 3600
        return top, f"rows by {'hour of the day' if is_hour else f'time, in {BUCKETS} steps'}"


@dataclasses.dataclass
class Answer:
    """Top accounts (name, volume) and rows in each of the 24 buckets; or column summaries."""

    top: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    histogram: list[int] = dataclasses.field(default_factory=list)
    columns: list[dict[str, str]] = dataclasses.field(default_factory=list)


def available_engine() -> str:
    """The best importable engine for the third process."""
    return next(name for name in ENGINES if importlib.util.find_spec(name) is not None)


def guess_roles(table: pa.Table) -> Roles | None:
    """The roles of a table of transfers, or None for other tables."""
    keys = {_key(name): name for name in reversed(table.column_names)}
    if len(keys) != table.num_columns or table.num_rows == 0:
        return None
    unnamed = all(name.startswith("column") and name[6:].isdigit() for name in keys.values())
    if unnamed and table.num_columns >= 3:
        account, when, amount = table.column_names[0], table.column_names[-1], None
    else:
        account = _pick(table, keys, _ACCOUNT_NAMES, _is_label) or ""
        times = [f.name for f in table.schema if pa.types.is_timestamp(f.type)]
        when = times[0] if times else _pick(table, keys, _TIME_NAMES, _is_integer) or ""
        amount = _pick(table, keys, _AMOUNT_NAMES, _is_number)
    if not account or not when or account == when:
        return None
    kind = table.schema.field(when).type
    if pa.types.is_timestamp(kind):
        return Roles(account, when, amount, is_timestamp=True, low=0, width=1)
    if not _is_integer(kind):
        return None
    ends = pc.min_max(table[when]).as_py()
    if ends["min"] is None:
        return None
    if ends["min"] >= _EPOCH_MIN:
        return Roles(account, when, amount, is_timestamp=False, low=0, width=3600)
    width = max(1, -(-(ends["max"] - ends["min"] + 1) // BUCKETS))
    return Roles(account, when, amount, is_timestamp=False, low=ends["min"], width=width)


def ask(engine: str, table: pa.Table, roles: Roles | None) -> Answer:
    """Run the queries with one of ``ENGINES``."""
    if roles is None:
        return _summary(table)
    answers = {"pyarrow": _ask_pyarrow, "duckdb": _ask_duckdb, "polars": _ask_polars}
    return answers[engine](table, roles)


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _pick(table: pa.Table, keys: dict[str, str], wanted: tuple[str, ...], fits: Any) -> str | None:
    """The column whose name equals, or else begins with, the first word with a suitable column."""
    for word in wanted:
        for key in sorted(keys, key=lambda key: (key != word, len(key))):
            if key.startswith(word) and fits(table.schema.field(keys[key]).type):
                return keys[key]
    return None


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_label(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind))


def _ask_pyarrow(table: pa.Table, roles: Roles) -> Answer:
    chosen = {"account": table[roles.account]}
    if roles.amount:
        chosen["volume"] = table[roles.amount]
        grouped = pa.table(chosen).group_by("account").aggregate([("volume", "sum")])
        grouped = grouped.rename_columns({"volume_sum": "volume"})
    else:
        grouped = pa.table(chosen).group_by("account").aggregate([([], "count_all")])
        grouped = grouped.rename_columns({"count_all": "volume"})
    order = pc.select_k_unstable(
        grouped, k=TOP, sort_keys=[("volume", "descending"), ("account", "ascending")]
    )
    top = grouped.take(order)
    if roles.is_timestamp:
        bucket = pc.hour(table[roles.time])
    else:
        shifted = pc.subtract(table[roles.time], roles.low)
        bucket = pc.divide(shifted, roles.width)
        # No modulo in pyarrow.compute.
        bucket = pc.subtract(bucket, pc.multiply(pc.divide(bucket, BUCKETS), BUCKETS))
    counts = [0] * BUCKETS
    for item in pc.value_counts(bucket).to_pylist():
        if item["values"] is not None:
            counts[int(item["values"])] = item["counts"]
    names, volumes = top["account"].to_pylist(), top["volume"].to_pylist()
    return Answer(_pairs(zip(names, volumes, strict=True)), counts)


def _ask_duckdb(table: pa.Table, roles: Roles) -> Answer:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("t", table)
        account, when = _quoted(roles.account), _quoted(roles.time)
        volume = f"sum({_quoted(roles.amount)})" if roles.amount else "count(*)"
        top = connection.execute(
            f"SELECT {account}, {volume} AS v FROM t GROUP BY 1 ORDER BY v DESC, 1 LIMIT {TOP}"
        ).fetchall()
        bucket = (
            f"hour({when})"
            if roles.is_timestamp
            else f"(({when} - {roles.low}) // {roles.width}) % {BUCKETS}"
        )
        counts = [0] * BUCKETS
        for place, rows in connection.execute(
            f"SELECT {bucket} AS b, count(*) FROM t WHERE {when} IS NOT NULL GROUP BY 1"
        ).fetchall():
            counts[int(place)] = rows
    return Answer(_pairs(top), counts)


def _ask_polars(table: pa.Table, roles: Roles) -> Answer:
    import polars as pl

    names = list(dict.fromkeys(filter(None, (roles.account, roles.time, roles.amount))))
    frame: Any = pl.from_arrow(table.select(names), rechunk=False)
    volume = pl.col(roles.amount).sum() if roles.amount else pl.len()
    top = (
        frame.lazy()
        .group_by(pl.col(roles.account).alias("account"))
        .agg(volume.alias("volume"))
        .sort(["volume", "account"], descending=[True, False])
        .head(TOP)
        .collect()
    )
    when = pl.col(roles.time)
    bucket = when.dt.hour() if roles.is_timestamp else ((when - roles.low) // roles.width) % BUCKETS
    counts = [0] * BUCKETS
    grouped = frame.lazy().group_by(bucket.alias("bucket")).agg(pl.len().alias("rows")).collect()
    for place, rows in grouped.iter_rows():
        if place is not None:
            counts[int(place)] = rows
    return Answer(_pairs(top.select("account", "volume").iter_rows()), counts)


def _pairs(rows: Any) -> list[tuple[str, float]]:
    return [(str(name), float(volume or 0)) for name, volume in rows]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _summary(table: pa.Table) -> Answer:
    """Nulls, smallest, largest and number of distinct values of each column, as text."""
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        facts = {"column": field.name, "type": str(field.type), "nulls": f"{column.null_count:,}"}
        try:
            ends = pc.min_max(column)
            facts["smallest"], facts["largest"] = str(ends["min"]), str(ends["max"])
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            facts["smallest"] = facts["largest"] = "-"
        try:
            facts["distinct"] = f"{pc.count_distinct(column).as_py():,}"
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            facts["distinct"] = "-"
        columns.append(facts)
    return Answer(columns=columns)
