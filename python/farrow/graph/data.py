"""Transactions as a graph: read them from files, number their accounts, enlarge them.

Examples:
    >>> import pyarrow as pa
    >>> data = from_table(pa.table({"source": ["a", "b"], "target": ["b", "a"],
    ...                             "timestamp": [60, 0], "amount": [1.5, 2.5]}))
    >>> data.table.to_pydict()["source"], data.accounts.names.to_pylist()
    ([1, 0], ['a', 'b'])
    >>> enlarge(data, 2).table["target"].to_pylist()
    [0, 2, 1, 3]
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from farrow.cli._files._read import read_table
from farrow.cli._files._sniff import FileKind, kind_of, text_shape
from farrow.exceptions import FarrowError
from farrow.graph._accounts import encoded, with_banks
from farrow.graph._columns import ColumnNames, layout_of
from farrow.graph._text import LABELS, first_fault, parsed_times, read_columns

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["Accounts", "DataError", "Transactions", "enlarge", "from_table", "read"]

_Ints = npt.NDArray[np.int64]


class DataError(FarrowError, ValueError):
    """A table or file does not hold transactions.

    Attributes:
        path: the file, or "" if there is none.
        line: number of the line, from 1; 0 if it is unknown or there are no lines.
        column: name of the column, or "".
    """

    def __init__(self, problem: str, path: str = "", line: int = 0, column: str = "") -> None:
        where = [path] if path else []
        where += [f"line {line}"] if line else []
        where += [f"column {column!r}"] if column else []
        super().__init__(f"{', '.join(where)}: {problem}" if where else problem)
        self.path, self.line, self.column = path, line, column


@dataclasses.dataclass(frozen=True)
class Accounts:
    """The accounts of a graph; the number of an account is its index in ``names``.

    Examples:
        >>> from farrow.graph import data
        >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
        ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
        >>> found = data.from_table(table)
        >>> len(found.accounts), found.accounts.names.to_pylist()
        (2, ['a', 'b'])
    """

    names: pa.Array
    """Strings (``bank:account`` where there are banks), or integers if the table has them."""

    def __len__(self) -> int:
        return len(self.names)

    def of(self, codes: Any) -> pa.Array:
        """The names of these account numbers.

        Args:
            codes: integers, each below the number of accounts.

        Returns:
            The names, in the order of ``codes``.

        Raises:
            pyarrow.ArrowIndexError: there is no account of that number.

        Examples:
            >>> from farrow.graph import data
            >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
            ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
            >>> found = data.from_table(table)
            >>> found.accounts.of([1, 0]).to_pylist()
            ['b', 'a']
        """
        return self.names.take(pa.array(codes))

    def code(self, name: str | int) -> int:
        """The number of an account.

        Args:
            name: its name, of the type of ``names``.

        Returns:
            Its index in ``names``.

        Raises:
            KeyError: the account does not exist.

        Examples:
            >>> from farrow.graph import data
            >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
            ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
            >>> found = data.from_table(table)
            >>> found.accounts.code("b")
            1
        """
        place = pc.index(self.names, pa.scalar(name, type=self.names.type)).as_py()
        if place < 0:
            raise KeyError(name)
        return int(place)


@dataclasses.dataclass(frozen=True)
class Transactions:
    """Transactions in order of time.

    ``table`` has the int64 columns ``edge_id``, ``source``, ``target`` (account numbers) and
    ``timestamp`` (seconds since 1970, or in the unit of the file), the float64 columns ``amounts``
    under their own names, the int8 column ``label`` (0 or 1) if the file has one, and the
    requested extra columns.

    Examples:
        >>> from farrow.graph import data
        >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
        ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
        >>> found = data.from_table(table)
        >>> found.table["timestamp"].to_pylist(), found.amounts
        ([0, 60], ('amount',))
    """

    table: pa.Table
    accounts: Accounts
    amounts: tuple[str, ...]

    @property
    def label(self) -> npt.NDArray[np.int8] | None:
        """The labels, int8 of shape (rows,), or None if there are none.

        Examples:
            >>> from farrow.graph import data
            >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
            ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
            >>> found = data.from_table(table)
            >>> found.label is None
            True
        """
        if "label" not in self.table.column_names:
            return None
        labels: npt.NDArray[np.int8] = self.table["label"].to_numpy()
        return labels

    def matrix(self) -> npt.NDArray[np.float64]:
        """The columns that ``GraphFeatures`` takes as an array.

        Returns:
            Edge id, source, target, timestamp and amounts: float64 of shape (rows, 4 + amounts).

        Examples:
            >>> from farrow.graph import data
            >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
            ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
            >>> found = data.from_table(table)
            >>> found.matrix().tolist()
            [[1.0, 1.0, 0.0, 0.0, 2.5], [0.0, 0.0, 1.0, 60.0, 1.5]]
        """
        names = ("edge_id", "source", "target", "timestamp", *self.amounts)
        values = np.empty((self.table.num_rows, len(names)))
        for place, name in enumerate(names):
            values[:, place] = self.table[name].to_numpy()
        return values


def read(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, object] | None = None,
    extras: Sequence[str] = (),
    time_unit: int | None = None,
    delimiter: str | None = None,
    has_header: bool | None = None,
) -> Transactions:
    """Read the transactions of a file.

    These formats need no ``columns``: IBM AML (``HI/LI-*_Trans.csv``; an account is a bank and a
    number), AMLSim, SNAP's temporal networks (source, target, optional weight, time; separated by
    commas, tabs or single spaces), and files of ``farrow graph generate``.

    Args:
        path: a delimited text file (also compressed), Parquet or Arrow IPC.
        columns: name or number of the column by role: ``source``, ``target``, ``timestamp``,
            ``source_bank``, ``target_bank``, ``edge_id``, ``label``, ``amounts`` (several).
        extras: further columns to read; those of text files are words.
        time_unit: seconds of a unit of times that are numbers (default 1; AMLSim a day).
        delimiter: the character between fields of text; None: detect it.
        has_header: whether text begins with the names of its columns; None: detect it.

    Returns:
        The transactions, sorted by time; rows of equal time stay in the order of the file.
        Edge ids are row numbers, from 0, if there is no such column.

    Raises:
        DataError: the file does not hold transactions; it has file, line and column.
        OSError: the file cannot be read.

    Examples:
        >>> from farrow.graph import data
        >>> with open("payments.csv", "w") as file:
        ...     _ = file.write("source,target,timestamp,amount\\na,b,60,1.5\\nb,a,0,2.5\\n")
        >>> data.read("payments.csv").table["amount"].to_pylist()
        [2.5, 1.5]
    """
    file = Path(path)
    try:
        if kind_of(file) is not FileKind.TEXT:
            table = read_table(file)
            return from_table(table, columns=columns, extras=extras, time_unit=time_unit)
        shape = text_shape(file, delimiter=delimiter, has_header=has_header)
        layout = layout_of(shape.columns, columns, has_header=shape.has_header, time_unit=time_unit)
        _check_extras(extras, shape.columns)
    except DataError as error:
        raise DataError(str(error), str(path)) from error
    except ValueError as error:
        raise DataError(str(error), str(path)) from error
    try:
        return _graph(read_columns(file, shape, layout, extras), layout, extras)
    except (pa.ArrowInvalid, DataError) as error:
        fault = first_fault(file, shape, layout)
        if fault is None:
            raise DataError(str(error), str(path)) from error
        raise DataError(fault.problem, str(path), fault.line, fault.column) from error


def from_table(
    table: pa.Table,
    *,
    columns: Mapping[str, object] | None = None,
    extras: Sequence[str] = (),
    time_unit: int | None = None,
) -> Transactions:
    """Convert a table to transactions.

    Args:
        table: accounts are strings or integers, times timestamps, dates, numbers or text,
            amounts numbers.
        columns: name of the column by role, as in ``read``; None: find them.
        extras: further columns to keep.
        time_unit: seconds of a unit of times that are numbers; None: 1.

    Returns:
        As ``read``.

    Raises:
        DataError: the table does not hold transactions; it has the column.

    Examples:
        >>> from farrow.graph import data
        >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
        ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
        >>> found = data.from_table(table)
        >>> found.table["source"].to_pylist(), found.accounts.names.to_pylist()
        ([1, 0], ['a', 'b'])
    """
    try:
        layout = layout_of(table.column_names, columns, time_unit=time_unit)
        _check_extras(extras, table.column_names)
    except ValueError as error:
        raise DataError(str(error)) from error
    return _graph(_without_null_words(table, layout), layout, extras)


def enlarge(data: Transactions, copies: int) -> Transactions:
    """Combine ``copies`` disjoint copies of a graph, each with new accounts.

    The graph grows, but statistics per account do not change.  Rows stay in order of time, the
    copies of a row are adjacent, and edge ids are row numbers from 0.

    Args:
        data: the transactions.
        copies: 1 or more.

    Returns:
        ``copies`` times the rows and accounts; account ``a`` of copy ``k`` has the number
        ``a + k * accounts`` and the name ``a#k`` (in copy 0 its own name; if names are integers,
        its number).

    Raises:
        ValueError: ``copies`` is less than 1.

    Examples:
        >>> from farrow.graph import data
        >>> table = pa.table({"source": ["a", "b"], "target": ["b", "a"],
        ...                   "timestamp": [60, 0], "amount": [1.5, 2.5]})
        >>> found = data.from_table(table)
        >>> data.enlarge(found, 2).table["target"].to_pylist()
        [0, 2, 1, 3]
    """
    if copies < 1:
        raise ValueError(f"copies is {copies}; it must be 1 or more")
    rows, accounts = data.table.num_rows, len(data.accounts)
    row = pa.array(np.repeat(np.arange(rows), copies))
    table = data.table.take(row)
    shift = np.tile(np.arange(copies, dtype=np.int64) * accounts, rows)
    for name in ("source", "target"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(table[name].to_numpy() + shift))
    table = table.set_column(0, "edge_id", pa.array(np.arange(rows * copies)))
    if pa.types.is_integer(data.accounts.names.type):
        names = pa.array(np.arange(accounts * copies))
    else:
        own = data.accounts.names
        parts = [
            pc.binary_join_element_wise(own, pa.scalar(str(copy)), "#") for copy in range(1, copies)
        ]
        names = pa.concat_arrays([own, *parts])
    return Transactions(table, Accounts(names), data.amounts)


def _check_extras(extras: Sequence[str], names: Sequence[str]) -> None:
    for name in extras:
        if name not in names:
            raise ValueError(f"extras: there is no column {name!r} in {', '.join(names)}")


def _without_null_words(table: pa.Table, layout: ColumnNames) -> pa.Table:
    """The table with plain values where a dictionary has a null, which no index shows as one."""
    for name in layout.columns:
        column = table[name]
        if pa.types.is_dictionary(column.type) and any(
            chunk.dictionary.null_count for chunk in column.chunks
        ):
            plain = column.cast(column.type.value_type)
            table = table.set_column(table.column_names.index(name), name, plain)
    return table


def _graph(table: pa.Table, layout: ColumnNames, extras: Sequence[str]) -> Transactions:
    """Convert columns of a file or table to a graph."""
    rows = table.num_rows
    edge_id = np.arange(rows) if layout.edge_id is None else _integers(table, layout.edge_id)
    timestamp = _seconds(table, layout)
    source, target, names = _accounts(table, layout)
    columns: dict[str, Any] = {
        "edge_id": edge_id,
        "source": source,
        "target": target,
        "timestamp": timestamp,
    }
    for name in layout.amounts:
        columns[_free(name, columns)] = _numbers(table, name)
    amounts = tuple(columns)[4:]
    if layout.label is not None:
        columns["label"] = _labels(table, layout.label)
    for name in extras:
        columns[_free(name, columns)] = table[name]
    graph = pa.table(columns)
    if rows and (np.diff(timestamp) < 0).any():
        graph = graph.take(pa.array(_order(timestamp)))
    return Transactions(graph, Accounts(names), amounts)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with underscores appended until it is free."""
    while name in taken or name == "label":
        name += "_"
    return name


def _order(timestamp: _Ints) -> _Ints:
    """The stable order of these times; times with few distinct values use a radix sort."""
    distinct, rank = np.unique(timestamp, return_inverse=True)
    # numpy sorts 16-bit integers by radix.
    small = len(distinct) <= 1 << 16
    order: _Ints = np.argsort(rank.astype(np.uint16) if small else timestamp, kind="stable")
    return order


def _accounts(table: pa.Table, layout: ColumnNames) -> tuple[_Ints, _Ints, pa.Array]:
    """Numbers of the sources and targets, and names of the accounts by number."""
    ends = [_named(table, layout.source), _named(table, layout.target)]
    if layout.source_bank is None or layout.target_bank is None:
        codes = encoded(ends)
    else:
        banks = [_named(table, layout.source_bank), _named(table, layout.target_bank)]
        # Hashing releases the GIL.
        with ThreadPoolExecutor(2) as pool:
            codes = with_banks(*pool.map(encoded, (ends, banks)))
    return codes[0][: table.num_rows], codes[0][table.num_rows :], codes[1]


def _named(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of accounts or banks: strings, words or integers, none missing, none empty."""
    column = table[name]
    if column.null_count:
        _refuse(name, f"{column.null_count} rows have none")
    kind = column.type
    if pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type):
        texts = [chunk.dictionary for chunk in column.chunks]
    elif pa.types.is_integer(kind):
        return column
    elif pa.types.is_floating(kind):
        # As text, a number of this kind would differ from the same integer.
        return _whole(name, column)
    else:
        column = column if pa.types.is_string(kind) else _cast(name, column, pa.string())
        texts = column.chunks
    if any(pc.any(pc.equal(pc.binary_length(text), 0)).as_py() for text in texts):
        _refuse(name, "an empty account or bank")
    return column


def _whole(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Accounts or banks that are floating-point numbers, as integers."""
    numbers = column.cast(pa.float64()).to_numpy()
    is_whole = (np.abs(numbers) <= 2.0**53) & (numbers == np.floor(numbers))
    if not is_whole.all():
        row = int(np.argmin(is_whole))
        _refuse(name, f"row {row} has {numbers[row]!r}, which is no whole number up to 2^53")
    return column.cast(pa.int64())


def _seconds(table: pa.Table, layout: ColumnNames) -> _Ints:
    """Times as int64 seconds of shape (rows,)."""
    name = layout.timestamp
    column = table[name]
    kind = column.type
    if column.null_count:
        _refuse(name, f"{column.null_count} rows have none")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        # Floored to the second, in UTC.
        whole = pc.floor_temporal(column, unit="second") if pa.types.is_timestamp(kind) else column
        times: _Ints = _cast(name, whole, pa.timestamp("s")).cast(pa.int64()).to_numpy()
        return times
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = _numbers(table, name) if pa.types.is_floating(kind) else column.to_numpy()
        limit = 2.0**62 / layout.time_unit
        if len(numbers) and (numbers.max() > limit or numbers.min() < -limit):
            _refuse(name, f"a time beyond {limit:.3g}")
        if pa.types.is_floating(kind):
            # Not of integers: before NumPy 2.1 they would become float64, which rounds nanoseconds.
            numbers = np.floor(numbers)
        whole_times: _Ints = numbers.astype(np.int64) * layout.time_unit
        return whole_times
    words = column if pa.types.is_dictionary(kind) else column.dictionary_encode()
    words = words.unify_dictionaries()
    if words.num_chunks == 0:
        return np.zeros(0, dtype=np.int64)
    texts = _cast(name, words.chunk(0).dictionary, pa.string())
    moments, wrong = parsed_times(texts)
    if wrong is not None:
        _refuse(name, f"{wrong!r} is no time")
    seconds: _Ints = moments.cast(pa.int64()).to_numpy()
    return np.take(seconds, _indices(words))


def _integers(table: pa.Table, name: str) -> _Ints:
    column = _cast(name, table[name], pa.int64())
    if column.null_count:
        _refuse(name, f"{column.null_count} rows have none")
    values: _Ints = column.to_numpy()
    return values


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    column = _cast(name, table[name], pa.float64())
    if column.null_count:
        _refuse(name, f"{column.null_count} rows have none")
    values: npt.NDArray[np.float64] = column.to_numpy()
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        _refuse(name, f"row {row} is {values[row]}")
    return values


def _labels(table: pa.Table, name: str) -> npt.NDArray[np.int8]:
    words = table[name]
    if words.null_count:
        _refuse(name, f"{words.null_count} rows have none")
    words = words if pa.types.is_dictionary(words.type) else words.dictionary_encode()
    words = words.unify_dictionaries()
    if words.num_chunks == 0:
        return np.zeros(0, dtype=np.int8)
    texts = _cast(name, words.chunk(0).dictionary, pa.string()).to_pylist()
    known = [LABELS.get(text.strip().lower(), -1) for text in texts]
    if -1 in known:
        _refuse(name, f"{texts[known.index(-1)]!r} is no label (0 or 1)")
    values = np.array(known, dtype=np.int8)
    return np.take(values, _indices(words))


def _indices(words: pa.ChunkedArray) -> npt.NDArray[Any]:
    return np.concatenate([chunk.indices.to_numpy() for chunk in words.chunks])


def _cast(name: str, column: Any, kind: pa.DataType) -> Any:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        _refuse(name, f"{column.type} is not {kind}: {error}")


def _refuse(column: str, problem: str) -> NoReturn:
    raise DataError(problem, column=column)
