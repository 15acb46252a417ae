"""Tables of Farrow as engines register them: by name, with the newest rows at each scan."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from farrow._reserved import HUGE_TABLE
from farrow.dataset import FarrowDataset, dataset, without_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from farrow import Client

__all__ = ["NewestRows", "folded", "newest_rows", "register_each", "table_names"]

_T = TypeVar("_T")

# A table that is replaced more often, each time while it is opened, is an error.
_REPLACED_MAX = 3
# Names of the chunks of a huge table: the table, the id of its root, and a number.
_CHUNK = re.compile(r"(?P<table>.+)/(?P<root>[0-9a-f]{32})/[0-9]{10}", re.DOTALL)


def table_names(client: Client) -> list[str]:
    """All huge tables, and all named tables and record batches."""
    listed = client.list(all_nodes=True).select(["name", "id", "kind", "metadata"])
    tabular = pc.is_in(listed["kind"], value_set=pa.array(["table", "record batch"]))
    rows = [row for row in listed.filter(tabular).to_pylist() if row["name"]]
    roots = {
        (row["name"], row["id"].hex()) for row in rows if HUGE_TABLE in dict(row["metadata"] or ())
    }

    def is_chunk(name: str) -> bool:
        found = _CHUNK.fullmatch(name)
        return found is not None and (found["table"], found["root"]) in roots

    return sorted({row["name"] for row in rows if not is_chunk(row["name"])})


def newest_rows(
    client: Client,
    names: Iterable[str] | None,
    kind: type[NewestRows] | None = None,
    *,
    snapshot: bool = False,
) -> dict[str, NewestRows]:
    """The tables of these names; None: of all names, with a warning for each that cannot be opened.

    Args:
        client: the client that finds them.
        names: their names.
        kind: the class of the rows; None: ``NewestRows``.
        snapshot: whether the rows are always those of now.

    Raises:
        NotFound: one of ``names`` does not exist.
    """
    from farrow import InvalidArgument, NotFound

    found: dict[str, NewestRows] = {}
    for name in table_names(client) if names is None else names:
        try:
            found[name] = (kind or NewestRows)(name, client, snapshot=snapshot)
        except NotFound:
            # Of all names, one may have been deleted since they were listed.
            if names is not None:
                raise
        except InvalidArgument as error:
            # Labelled as a huge table by a later version, or by anybody.
            if names is not None:
                raise
            warnings.warn(f"not attached: {error}", stacklevel=3)
    return found


def register_each(
    found: dict[str, NewestRows], register: Callable[[str, NewestRows], None], *, is_all: bool
) -> list[str]:
    """Register tables with an engine.

    Args:
        found: the tables by their names.
        register: registers one of them, or raises ``UnsupportedType``.
        is_all: whether they are all tables that there are: then one that the engine cannot read is
            left out, with a warning, since another client may have put it.

    Returns:
        The names that were registered.

    Raises:
        UnsupportedType: the engine cannot read one of them.
    """
    from farrow import UnsupportedType

    registered = []
    for name, rows in found.items():
        try:
            register(name, rows)
        except UnsupportedType as error:
            if not is_all:
                raise
            # Of the caller of ``attach``.
            warnings.warn(f"not attached: {error}", stacklevel=3)
        else:
            registered.append(name)
    return registered


def folded(name: str) -> str:
    """A name as DuckDB compares names: without the case of ASCII letters."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _schema_of(name: str, client: Client) -> pa.Schema:
    """The schema of an object, of which no row is fetched from another node."""
    from farrow import InvalidArgument

    try:
        found = client.get(name, rows=slice(0, 0))
    except InvalidArgument:
        found = None
    if not isinstance(found, (pa.Table, pa.RecordBatch)):
        raise InvalidArgument(f"object {name!r} has no columns")
    return found.schema


class NewestRows(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset that opens its table for each scan, or once if it is a snapshot.

    Engines ask for the schema, for scanners and for fragments. Methods that would read this
    object's own rows, of which it has none, ask a dataset of the newest rows instead.
    """

    def __init__(self, name: str, client: Client, *, snapshot: bool = False) -> None:
        is_huge = HUGE_TABLE in client.metadata(name)
        schema = client.huge_table(name).schema if is_huge else _schema_of(name, client)
        # Not ``empty_table()``, which has no arrays of unions.
        super().__init__(pa.Table.from_batches([], schema))
        self._name = name
        self._client = client
        # The id and version of a huge table, and its dataset.
        self._last: tuple[bytes, int, FarrowDataset] | None = None
        self._snapshot: FarrowDataset | None = None
        if snapshot:
            self._snapshot = self._open()

    def _open(self) -> FarrowDataset:
        """The newest rows."""
        if self._snapshot is not None:
            return self._snapshot
        return self._checked(dataset(self._name, self._client))

    def _open_for_scan(self) -> FarrowDataset:
        """The newest rows, of which a huge table keeps none in memory."""
        if self._snapshot is not None:
            return self._snapshot
        if HUGE_TABLE not in self._client.metadata(self._name):
            return self._open()
        table = self._client.huge_table(self._name)
        id, version = table._id, table.version
        last = self._last
        if last is None or last[:2] != (id, version):
            last = self._last = (id, version, self._checked(without_rows(table, version)))
        return last[2]

    def _checked(self, newest: FarrowDataset) -> FarrowDataset:
        from farrow import InvalidArgument

        if not newest.schema.equals(self.schema):
            raise InvalidArgument(f"table {self._name!r} has another schema now: attach it again")
        return newest

    def __reduce__(self) -> Any:
        raise TypeError("a dataset over shared memory cannot be pickled; attach it there")

    def scanner(self, *arguments: Any, **options: Any) -> ds.Scanner:
        return self._scan(lambda opened: opened.scanner(*arguments, **options))

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[ds.Fragment]:
        # All at once: an engine may read them much later.
        return iter(self._scan(lambda opened: [*opened.get_fragments(filter)]))

    def _scan(self, scan: Callable[[FarrowDataset], _T]) -> _T:
        from farrow import NotFound

        for _ in range(_REPLACED_MAX):
            opened = self._open_for_scan()
            try:
                return scan(opened)
            except NotFound:
                # Replaced before its rows were found: another object has the newest ones.
                self._last = None
        return scan(self._open())

    def count_rows(self, *arguments: Any, **options: Any) -> int:
        from farrow import InvalidArgument

        if self._snapshot is not None:
            return self._snapshot.count_rows(*arguments, **options)
        # The name may have another object since.
        is_huge = HUGE_TABLE in self._client.metadata(self._name)
        if not (is_huge or arguments or options):
            # Engines ask when they register it: no rows of another node are fetched for that.
            with contextlib.suppress(InvalidArgument):
                return int(self._client.get(self._name, columns=[]).num_rows)
        return self._open_for_scan().count_rows(*arguments, **options)

    def filter(self, expression: pc.Expression) -> FarrowDataset:
        return self._open().filter(expression)

    def sort_by(self, *arguments: Any, **options: Any) -> Any:
        return self._open().sort_by(*arguments, **options)

    def join(self, *arguments: Any, **options: Any) -> Any:
        return self._open().join(*arguments, **options)

    def join_asof(self, *arguments: Any, **options: Any) -> Any:
        return self._open().join_asof(*arguments, **options)

    def replace_schema(self, schema: pa.Schema) -> Any:
        return self._open().replace_schema(schema)
