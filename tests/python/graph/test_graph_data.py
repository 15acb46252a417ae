"""The loader of transactions: layouts it knows, numbers of accounts, errors that say where."""

from __future__ import annotations

import datetime
import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import farrow
from farrow.graph import data, generate
from farrow.graph._accounts import encoded

SHARED = Path(os.environ.get("FARROW_SHARED", Path(__file__).resolve().parents[4] / "shared"))

IBM = (
    "Timestamp,From Bank,Account,To Bank,Account,Amount Received,Receiving Currency,"
    "Amount Paid,Payment Currency,Payment Format,Is Laundering\n"
    "2022/09/01 00:20,010,8000EBD30,010,8000EBD30,3697.34,US Dollar,3697.34,US Dollar,Wire,0\n"
    "2022/09/01 00:00,03208,8000F4580,001,8000F5340,0.01,Yen,0.02,US Dollar,Cheque,1\n"
    "2022/09/01 00:20,10,8000EBD30,001,8000F5340,5,Yen,6,US Dollar,ACH,0\n"
)


def real(name: str) -> Path:
    """A file of real data; the test is skipped where there is none."""
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"no real data at {path} (set FARROW_SHARED)")
    return path


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_ibm_file(tmp_path: Path) -> None:
    read = data.read(write(tmp_path, IBM), extras=["Payment Format"])
    table = read.table
    assert table.schema.field("edge_id").type == pa.int64()
    assert table.schema.field("source").type == pa.int64()
    assert table.schema.field("timestamp").type == pa.int64()
    # Sorted by time, ties as in the file.
    assert table["edge_id"].to_pylist() == [1, 0, 2]
    start = int(datetime.datetime(2022, 9, 1, tzinfo=datetime.timezone.utc).timestamp())
    assert table["timestamp"].to_pylist() == [start, start + 1200, start + 1200]
    assert read.amounts == ("Amount Received", "Amount Paid")
    assert table["Amount Paid"].to_pylist() == [0.02, 3697.34, 6.0]
    assert table["label"].to_pylist() == [1, 0, 0]
    assert table["Payment Format"].to_pylist() == ["Cheque", "Wire", "ACH"]
    names = read.accounts
    assert names.of(table["source"].to_numpy()).to_pylist() == [
        "03208:8000F4580",
        "010:8000EBD30",
        "10:8000EBD30",  # the same number at another bank is another account
    ]
    assert table["target"][0] == table["target"][2]
    assert len(names) == 4
    assert names.code("001:8000F5340") == table["target"][0].as_py()
    with pytest.raises(KeyError):
        names.code("nobody")
    assert read.matrix().tolist()[1] == [
        0,
        table["source"][1].as_py(),
        table["target"][1].as_py(),
        start + 1200,
        3697.34,
        3697.34,
    ]
    assert read.label is not None
    assert read.label.tolist() == [1, 0, 0]


def test_blank_lines_before_the_header_are_no_rows(tmp_path: Path) -> None:
    read = data.read(write(tmp_path, "# remark\n\n" + IBM))
    assert read.table.num_rows == 3
    # Faults are named by the line of the file.
    with pytest.raises(ValueError, match="line 7"):
        data.read(write(tmp_path, "# remark\n\n" + IBM + "2022/09/01 00:20,1\n"))


def test_a_field_of_more_than_a_mebibyte_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    text = "source,target,timestamp\n1,2,3\n" + "4,5," + "x" * (1 << 21) + "\n"
    with pytest.raises(data.DataError, match="line 3") as raised:
        data.read(write(tmp_path, text))
    assert "field larger than field limit" in str(raised.value)


def test_ten_columns_and_gzip(tmp_path: Path) -> None:
    ten = "\n".join(line.rpartition(",")[0] for line in IBM.splitlines())
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(ten.encode()))
    read = data.read(path)
    assert read.label is None
    assert read.table.num_rows == 3
    assert len(read.accounts) == 4


def test_other_layouts(tmp_path: Path) -> None:
    steps = data.read(write(tmp_path, "sourceNodeId,targetNodeId,value,time\n5,7,1.5,2\n"))
    assert steps.table["timestamp"].to_pylist() == [2 * 86_400]
    assert steps.accounts.names.to_pylist() == ["5", "7"]
    full = (
        "TX_ID,SENDER_ACCOUNT_ID,RECEIVER_ACCOUNT_ID,TX_TYPE,TX_AMOUNT,TIMESTAMP,IS_FRAUD,ALERT_ID\n"
        "9,1,2,TRANSFER,3.5,0,False,-1\n8,2,1,TRANSFER,4.5,1,True,-1\n"
    )
    read = data.read(write(tmp_path, full))
    assert read.table["edge_id"].to_pylist() == [9, 8]
    assert read.table["label"].to_pylist() == [0, 1]
    assert read.table["TX_AMOUNT"].to_pylist() == [3.5, 4.5]
    spaces = data.read(write(tmp_path, "# remark\n1 2 1082040961\n3 1 1082040960\n", "t.txt"))
    assert spaces.table["timestamp"].to_pylist() == [1082040960, 1082040961]
    tabs = data.read(write(tmp_path, "1\t2\t-3\t100.75\n", "t.tsv"))
    assert tabs.table["timestamp"].to_pylist() == [100]
    assert tabs.matrix()[0, 4] == -3
    longer = data.read(write(tmp_path, "1 2 10\n"), time_unit=60)
    assert longer.table["timestamp"].to_pylist() == [600]


def test_any_table_by_mapping(tmp_path: Path) -> None:
    table = pa.table(
        {
            "when": pa.array([datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2)]),
            "payer": pa.array(["x", "y"]).dictionary_encode(),
            "payee": ["y", "z"],
            "sum": pa.array([1, 2], pa.decimal128(9, 2)),
            "count": pa.array([3, 4], pa.uint8()),
        }
    )
    columns = {"source": "payer", "target": 2, "timestamp": "when", "amounts": ["sum", "count"]}
    read = data.from_table(table, columns=columns)
    assert read.table["source"].to_pylist() == [0, 1]
    assert read.table["target"].to_pylist() == [1, 2]
    assert read.matrix()[:, 4:].tolist() == [[1, 3], [2, 4]]
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    assert data.read(path, columns=columns).table.equals(read.table)
    numbers = pa.table({"source": [5, 6], "target": [6, 2**40], "timestamp": [1, 2]})
    assert data.from_table(numbers).accounts.names.to_pylist() == [5, 6, 2**40]
    # A role may be given away: no amounts, no label.
    none = data.from_table(
        numbers.append_column("label", pa.array([0, 1])), columns={"label": None}
    )
    assert none.label is None


def test_formats_of_the_generator_agree(tmp_path: Path) -> None:
    paths = [
        generate.write(tmp_path / f"t.{end}", 3_000, seed=2) for end in ("csv", "parquet", "arrow")
    ]
    first, *others = [data.read(path) for path in paths]
    assert first.table.num_rows == 3_000
    for other in others:
        assert other.table.to_pydict() == first.table.to_pydict()
        assert other.accounts.names.equals(first.accounts.names)
    made = generate.transactions(3_000, seed=2)
    texts = pc.binary_join_element_wise(
        made["from bank"].cast(pa.string()), made["from account"], ":"
    )
    assert first.accounts.of(first.table["source"].to_numpy()).to_pylist() == texts.to_pylist()


@pytest.mark.parametrize(
    "values",
    [
        ["abcdefghi", "\x7fbcdefgh\x00", "abcdefghj", "abcdefghi"],  # nine ASCII characters
        ["ab", "cd", "ab"],
        ["abcdefghi", "abcdefgh"],
        ["abcdefghij", "abcdefghik", "abcdefghij"],
        ["\u00e4bcdefgh", "\u00f6bcdefgh"],  # nine bytes, not ASCII
        ["1234567\u00e4", "12345678\u00e4"],
        [],
    ],
)
def test_codes_stand_for_their_texts(values: list[str]) -> None:
    column = pa.chunked_array([values[:1], values[1:]], pa.string())
    codes, names = encoded([column, pa.chunked_array([values[::-1]], pa.string())])
    assert names.take(pa.array(codes)).to_pylist() == values + values[::-1]
    # By first appearance.
    assert names.to_pylist() == list(dict.fromkeys(values))


def test_codes_of_slices() -> None:
    column = pa.chunked_array([pa.array(["aaa", "bbb", "ccc", "aaa"]).slice(1, 3)])
    codes, names = encoded([column])
    assert codes.tolist() == [0, 1, 2]
    assert names.to_pylist() == ["bbb", "ccc", "aaa"]


def test_enlarge() -> None:
    read = data.from_table(
        pa.table(
            {
                "source": ["a", "b", "c"],
                "target": ["b", "c", "a"],
                "timestamp": [3, 1, 2],
                "amount": [1.0, 2.0, 3.0],
            }
        )
    )
    large = data.enlarge(read, 3)
    assert large.table.num_rows == 9
    assert large.table["edge_id"].to_pylist() == list(range(9))
    assert (np.diff(large.table["timestamp"].to_numpy()) >= 0).all()
    for copy in range(3):
        rows = large.table.take(pa.array(np.arange(copy, 9, 3)))
        shifted = np.asarray(read.table["source"]) + 3 * copy
        assert rows["source"].to_pylist() == shifted.tolist()
        assert rows["amount"].equals(read.table["amount"])
    assert large.accounts.names.to_pylist() == [
        "a",
        "b",
        "c",
        "a#1",
        "b#1",
        "c#1",
        "a#2",
        "b#2",
        "c#2",
    ]
    assert data.enlarge(read, 1).table.drop("edge_id").equals(read.table.drop("edge_id"))
    with pytest.raises(ValueError, match="copies is 0"):
        data.enlarge(read, 0)


ROW = "2022/09/01 00:20,1,A,1,B,1,US Dollar,1,US Dollar,Wire,0\n"


@pytest.mark.parametrize(
    ("bad", "line", "column", "problem"),
    [
        (
            "2022/09/01 00:20,1,A,1,B,12x,US Dollar,1,US Dollar,Wire,0\n",
            5,
            "Amount Received",
            "'12x'",
        ),
        ("2022/09/01 00:20,1,A,1,B,1,US Dollar,,US Dollar,Wire,0\n", 5, "Amount Paid", "no number"),
        (
            "2022/09/01 00:20,1,A,1,B,nan,US Dollar,1,US Dollar,Wire,0\n",
            5,
            "Amount Received",
            "finite",
        ),
        ("yesterday,1,A,1,B,1,US Dollar,1,US Dollar,Wire,0\n", 5, "Timestamp", "no time"),
        ("2022/09/01 00:20,1,,1,B,1,US Dollar,1,US Dollar,Wire,0\n", 5, "Account", "account"),
        ("2022/09/01 00:20,1,A,,B,1,US Dollar,1,US Dollar,Wire,0\n", 5, "To Bank", "bank"),
        ("2022/09/01 00:20,1,A,1,B,1,US Dollar,1,US Dollar,Wire,2\n", 5, "Is Laundering", "label"),
        ("2022/09/01 00:20,1,A\n", 5, "", "3 fields where 11"),
    ],
)
def test_bad_lines_are_named(
    tmp_path: Path, bad: str, line: int, column: str, problem: str
) -> None:
    path = write(tmp_path, IBM + bad + ROW)
    with pytest.raises(data.DataError, match=problem) as caught:
        data.read(path)
    assert isinstance(caught.value, farrow.FarrowError)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(path) in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for text in ("", "Timestamp,From Bank\n", "1 2\n3 4\n"):
        path = write(tmp_path, text)
        with pytest.raises(data.DataError, match=r"t\.csv"):
            data.read(path)
    empty = data.read(write(tmp_path, IBM.splitlines()[0] + "\n"))
    assert empty.table.num_rows == 0
    assert empty.matrix().shape == (0, 6)
    assert data.enlarge(empty, 2).table.num_rows == 0
    with pytest.raises(OSError, match="nowhere"):
        data.read(tmp_path / "nowhere.csv")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises((data.DataError, OSError)):
        data.read(tmp_path / "t.parquet")


def words(values: list[str | None]) -> pa.Array:
    """A column whose dictionary has a value for each row."""
    return pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int8()), values)


def test_times_that_are_integers_keep_their_last_digit() -> None:
    """Regression test: NumPy before 2.1 rounded nanoseconds since 1970 to multiples of 256."""
    times = [1_700_000_000_000_000_001, 1_700_000_000_000_000_002]
    table = pa.table({"source": ["a", "b"], "target": ["b", "c"], "timestamp": times})
    assert data.from_table(table).table["timestamp"].to_pylist() == times


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ({"source": ["a", None], "target": ["b", "c"], "timestamp": [1, 2]}, "source"),
        ({"source": ["a", ""], "target": ["b", "c"], "timestamp": [1, 2]}, "source"),
        ({"source": ["a", "b"], "target": ["b", "c"], "timestamp": [1, None]}, "timestamp"),
        ({"source": ["a"], "target": ["b"], "timestamp": [float("inf")]}, "timestamp"),
        ({"source": ["a"], "target": ["b"], "timestamp": [1e30]}, "timestamp"),
        ({"source": ["a"], "target": ["b"], "timestamp": [1], "amount": ["much"]}, "amount"),
        ({"source": ["a"], "target": ["b"], "timestamp": [1], "amount": [float("nan")]}, "amount"),
        ({"source": ["a"], "target": ["b"], "timestamp": [1], "label": [7]}, "label"),
        ({"source": words(["a", None]), "target": ["b", "c"], "timestamp": [1, 2]}, "source"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(table: dict[str, list[object]], column: str) -> None:
    with pytest.raises(data.DataError) as caught:
        data.from_table(pa.table(table))
    assert caught.value.column == column


def test_bad_mappings_are_refused() -> None:
    table = pa.table({"a": [1], "b": [2], "timestamp": [3], "frombank": [1]})
    for columns, problem in (
        ({"source": "a"}, "which column is target"),
        ({"source": "a", "target": "x"}, "no column 'x'"),
        ({"source": "a", "target": 9}, "no column 9"),
        ({"source": "a", "target": "b", "colour": "b"}, "'colour' is no role"),
        ({"source": "a", "target": "b"}, "only one of the two"),
    ):
        with pytest.raises(data.DataError, match=problem):
            data.from_table(table, columns=columns)
    good: dict[str, object] = {"source": "a", "target": "b", "source_bank": None}
    with pytest.raises(data.DataError, match="extras"):
        data.from_table(table, columns=good, extras=["x"])
    with pytest.raises(data.DataError, match="time_unit"):
        data.from_table(table, columns=good, time_unit=0)
    assert data.from_table(table, columns=good).table.num_rows == 1


@pytest.mark.parametrize(
    ("name", "rows", "accounts"),
    [
        ("amlsim_20K_cycle200_transactions.csv.gz", 117_805, 19_980),
        ("bitcoin_otc.csv.gz", 35_592, 5_881),
        ("bitcoin_alpha.csv.gz", 24_186, 3_783),
        ("collegemsg.txt.gz", 59_835, 1_899),
        ("dnc_temporal.txt.gz", 39_264, 1_891),
        ("hi_small_first1000.csv.gz", 1_000, 872),
        ("hi_small_patterns.csv.gz", 3_209, 3_170),
    ],
)
def test_real_files(name: str, rows: int, accounts: int) -> None:
    read = data.read(real(name))
    assert (read.table.num_rows, len(read.accounts)) == (rows, accounts)
    assert (np.diff(read.table["timestamp"].to_numpy()) >= 0).all()
    assert sorted(read.table["edge_id"].to_pylist()) == list(range(rows))


def test_rings_span_what_the_real_ones_do() -> None:
    """Of real rings of four rows or more 23 % fit in 72 hours, 81 % in 96, all in 240."""

    def shares(ring: np.ndarray, seconds: np.ndarray) -> list[float]:
        spans = []
        for number in np.unique(ring):
            times = seconds[ring == number]
            if len(times) >= 4:
                spans.append(np.ptp(times) / 3600)
        return [float(np.mean(np.array(spans) <= hours)) for hours in (6, 24, 72, 96, 240)]

    found = data.read(real("hi_small_patterns.csv.gz"), extras=["pattern_id"])
    numbers = found.table["pattern_id"].combine_chunks().cast(pa.string()).dictionary_encode()
    wanted = shares(numbers.indices.to_numpy(), found.table["timestamp"].to_numpy())
    made = generate.transactions(60_000, seed=11, rings=800, ring_columns=True)
    made = made.filter(pc.is_valid(made["ring"]))
    seconds = made["timestamp"].cast(pa.int64()).to_numpy()
    ours = shares(made["ring"].to_numpy(), seconds)
    assert np.abs(np.array(ours) - wanted).max() < 0.08


def test_an_account_is_one_whether_its_numbers_are_integers_or_floats() -> None:
    """10000000000 and 1e10 were two accounts, as texts."""
    table = pa.table(
        {"source": [12345678901234567, 10**10], "target": [1e10, 3.0], "timestamp": [1, 2]}
    )
    found = data.from_table(table).accounts.names.to_pylist()
    assert sorted(map(int, found)) == [3, 10**10, 12345678901234567]
    for wrong in (0.5, 1e17):
        odd = table.set_column(1, "target", pa.array([1.0, wrong]))
        with pytest.raises(ValueError, match=r"row 1 has .* no whole number up to 2"):
            data.from_table(odd)
