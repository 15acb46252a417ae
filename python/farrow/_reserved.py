"""Names and labels of objects that Farrow itself puts."""

from __future__ import annotations

__all__ = ["HUGE_TABLE", "SQL_QUERIES", "STATISTICS"]

# The label of the root of a huge table (crates/farrow/src/huge/labels.rs).
HUGE_TABLE = "farrow.huge_table"
# The label with the statistics of a put table (crates/farrow/src/objects/table_statistics.rs).
STATISTICS = "farrow.statistics"
# Names of the queries that run, one object each, begin with this.  The dashboard lists them without
# the package farrow-sql.
SQL_QUERIES = "farrow.sql/queries/"
