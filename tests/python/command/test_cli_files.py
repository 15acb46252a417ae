"""What files the command ``farrow put`` reads, and how it tells one kind from another."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from farrow.cli._files._estimate import estimate
from farrow.cli._files._read import read_table
from farrow.cli._files._sniff import FileKind, kind_of, text_shape
from farrow.graph import generate

ROWS = 2_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return generate.transactions(ROWS, seed=1)


def test_kinds_are_distinguished_by_contents(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "a.dat")
    with pa.ipc.new_file(tmp_path / "b.dat", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "c.dat", table.schema) as writer:
        writer.write_table(table)
    pacsv.write_csv(table, tmp_path / "d.dat")
    kinds = [kind_of(tmp_path / f"{name}.dat") for name in "abcd"]
    assert kinds == [FileKind.PARQUET, FileKind.IPC_FILE, FileKind.IPC_STREAM, FileKind.TEXT]
    for name in "abcd":
        assert read_table(tmp_path / f"{name}.dat").num_rows == ROWS


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"a\.bin is no"):
        kind_of(tmp_path / "a.bin")
    (tmp_path / "a.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"not the \.parquet file"):
        kind_of(tmp_path / "a.parquet")
    (tmp_path / "e.csv").write_text("")
    with pytest.raises(ValueError, match="no rows"):
        read_table(tmp_path / "e.csv")
    (tmp_path / "e.csv.gz").write_bytes(b"")
    with pytest.raises((ValueError, OSError)):
        read_table(tmp_path / "e.csv.gz")


def test_json_lines_are_a_table(tmp_path: Path) -> None:
    """A file of JSON lines was read as delimited text of one column."""
    lines = '{"a": 1, "b": "x"}\n{"a": 2}\n\n{"a": 3, "b": null}\n'
    for name, data in {
        "a.jsonl": lines.encode(),
        "a.json": lines.encode(),
        "a.dat": lines.encode(),
        "a.ndjson.gz": gzip.compress(lines.encode()),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert kind_of(tmp_path / name) is FileKind.JSON
        assert read_table(tmp_path / name).to_pydict() == {"a": [1, 2, 3], "b": ["x", None, None]}
    (tmp_path / "b.json").write_text('[{"a": 1}]')
    with pytest.raises(ValueError, match=r"b\.json is one JSON array: write one object a line"):
        read_table(tmp_path / "b.json")
    (tmp_path / "c.json").write_text('{"a": 1}\n{"a": "text"}\n')
    with pytest.raises(pa.ArrowInvalid, match=r"c\.json: JSON parse error: Column\(/a\) changed"):
        read_table(tmp_path / "c.json")
    # Delimited text may begin with a brace.
    (tmp_path / "d.csv").write_text("{a},b\n1,2\n")
    assert read_table(tmp_path / "d.csv").column_names == ["{a}", "b"]


def test_json_objects_longer_than_a_block_are_read(tmp_path: Path) -> None:
    long = "x" * (9 << 20)
    (tmp_path / "a.jsonl").write_text(f'{{"a": "{long}"}}\n' * 3)
    assert read_table(tmp_path / "a.jsonl").num_rows == 3


def test_a_spreadsheet_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ValueError, match=r"a\.xlsx is a spreadsheet .* save the sheet as CSV"):
        kind_of(tmp_path / "a.xlsx")


def test_an_error_in_text_names_file_and_row(tmp_path: Path) -> None:
    """ "Expected 3 columns, got 2" did not say in which of a million rows."""
    path = tmp_path / "a.csv"
    path.write_text("# remark\n\na,b,c\n1,2,3\n4,5,6\n7,8\n9,10,11\n")
    with pytest.raises(pa.ArrowInvalid, match=r"a\.csv: .*Row #6: Expected 3 columns, got 2: 7,8"):
        read_table(path)


@pytest.mark.parametrize(
    ("text", "delimiter", "columns"),
    [
        ("1 2 1082040961\n3 4 1082155839\n", " ", ["column0", "column1", "column2"]),
        ("source,target\n1,2\n", ",", ["source", "target"]),
        ("a\tb\n1\t2\n", "\t", ["a", "b"]),
        ("# remark\n% more\n1 2 3\n", " ", ["column0", "column1", "column2"]),
        ("Account,Account,Account\nA,B,C\n", ",", ["Account", "Account.1", "Account.2"]),
        ("when,who\n2022/09/01 00:20,a b\n", ",", ["when", "who"]),
        ('"a, b";c\n"1, 2";3\n', ";", ["a, b", "c"]),
        ("\ufeffa,b\n1,2\n", ",", ["a", "b"]),
    ],
)
def test_text_is_sniffed(tmp_path: Path, text: str, delimiter: str, columns: list[str]) -> None:
    path = tmp_path / "t.txt"
    path.write_text(text)
    shape = text_shape(path)
    assert shape.delimiter == delimiter
    assert list(shape.columns) == columns
    read = read_table(path)
    assert read.column_names == columns
    rows = [line for line in text.splitlines() if line[0] not in "#%"]
    assert read.num_rows == len(rows) - int(shape.has_header)
    packed = tmp_path / "t.txt.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_table(packed).equals(read)


@pytest.mark.parametrize(
    "before",
    ["\n", "\n\n", "# remark\n\n", "# remark\n  \n% more\n", "\r\n", "\n# remark\n", "# a\x0bb\n"],
)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_blank_lines_and_remarks_before_the_header_do_not_turn_it_into_a_row(
    tmp_path: Path, before: str, suffix: str
) -> None:
    path = tmp_path / f"t{suffix}"
    content = f"{before}source,target\n\n1,2\n3,4\n".encode()
    path.write_bytes(gzip.compress(content) if suffix == ".csv.gz" else content)
    assert read_table(path).to_pydict() == {"source": [1, 3], "target": [2, 4]}
    assert estimate(path).likely > 0


def test_blank_lines_before_rows_without_names_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("# remark\n \n1,2\n3,4\n")
    assert read_table(path).to_pydict() == {"column0": [1, 3], "column1": [2, 4]}


def test_a_column_name_with_a_line_break_does_not_turn_the_header_into_a_row(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\n"amount\r\n\r\nin USD",bank\r\n1.5,2\r\n')
    assert read_table(path).to_pydict() == {"amount\r\n\r\nin USD": [1.5], "bank": [2]}


@pytest.mark.parametrize("newline", ["\r", "\n", "\r\n"])
def test_lines_may_end_as_on_any_system(tmp_path: Path, newline: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(newline.join(["# remark", "a,b", "1,2", "3,4", ""]).encode())
    assert read_table(path).to_pydict() == {"a": [1, 3], "b": [2, 4]}


def test_a_field_longer_than_the_limit_of_python_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    text = "x" * 200_000
    path.write_text(f"a,b\n1,{text}\n")
    assert read_table(path).to_pydict() == {"a": [1], "b": [text]}


def test_text_that_cannot_be_split_is_a_value_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which text that is depends on the version of Python.
    def fail(*_: object, **__: object) -> None:
        raise csv.Error("line contains NUL")

    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    monkeypatch.setattr(csv, "reader", fail)
    with pytest.raises(ValueError, match=r"t\.csv is no delimited text: line contains NUL"):
        text_shape(path)


def test_leading_zeros_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("bank,n\n012,1\n021174,2\n")
    assert read_table(path).to_pydict() == {"bank": ["012", "021174"], "n": [1, 2]}


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_late_leading_zeros_stay_text(tmp_path: Path, suffix: str) -> None:
    """Only the first lines were looked at: a postcode of line 40,000 lost its zero."""
    path = tmp_path / f"t{suffix}"
    rows = 60_000
    for last, zips in (("00501,7", True), ("0,0.5", False), ("12345,07/08", False)):
        content = "zip,n\n" + "90210,12\n" * rows + f"{last}\n"
        path.write_bytes(
            gzip.compress(content.encode()) if suffix == ".csv.gz" else content.encode()
        )
        table = read_table(path)
        assert (table.schema.field("zip").type == pa.string()) == zips, last
        assert str(table["zip"][-1]) == last.split(",")[0]
        assert str(table["n"][-1]) == last.split(",")[1]
        assert table.num_rows == rows + 1


def test_columns_that_change_their_mind_are_widened(tmp_path: Path) -> None:
    # pyarrow takes types from the first block (8 MiB here); accounts turn hexadecimal later.
    path = tmp_path / "t.csv"
    rows = 1_200_000
    with path.open("w") as file:
        file.write("account,amount\n")
        file.writelines(f"80000{i % 97:03d},{i % 1000}\n" for i in range(rows))
        file.write("8000EBD30,0.5\n")
    assert path.stat().st_size > 8 << 20
    table = read_table(path)
    assert table.num_rows == rows + 1
    assert table.schema.field("account").type == pa.string()
    assert table.schema.field("amount").type == pa.float64()
    assert table["account"][-1].as_py() == "8000EBD30"


def test_progress_ends_at_the_total(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=500)
    pacsv.write_csv(table, tmp_path / "t.csv")
    for name in ("t.parquet", "t.csv"):
        seen: list[tuple[int, int]] = []
        read_table(
            tmp_path / name, progress=lambda done, total, seen=seen: seen.append((done, total))
        )
        assert seen[-1][0] == seen[-1][1] > 0
        assert seen == sorted(seen)


def test_a_line_break_in_quotes_ends_no_row_wherever_pyarrow_cuts_the_file(tmp_path: Path) -> None:
    """Rows were torn at the end of a block, and read as others, with all columns as text."""
    path = tmp_path / "t.csv"
    rows = 30_000
    text = "it came late,\nthen I sent it back\n" + "x" * 300
    with path.open("w") as file:
        file.write("id,text\n")
        file.writelines(f'{number},"{text}"\n' for number in range(rows))
    assert path.stat().st_size > 8 << 20
    table = read_table(path)
    assert table["id"].to_pylist() == list(range(rows))
    assert table["text"].unique().to_pylist() == [text]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("#,Name,HP\n1,Bulbasaur,45\n2,Ivysaur,60\n", ["#", "Name", "HP"]),
        ("%change,day\n1.5,2\n", ["%change", "day"]),
        ("# made by x\n#chrom\tstart\n1\t2\n", ["#chrom", "start"]),
        ("# a, b\n1,2\n", ["column0", "column1"]),
        ("#x,y,z\na,b\n1,2\n", ["a", "b"]),
        ("# only remarks\n", None),
    ],
)
def test_a_header_may_begin_like_a_remark(
    tmp_path: Path, content: str, columns: list[str] | None
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    if columns is None:
        with pytest.raises(ValueError, match="holds no rows"):
            text_shape(path)
    else:
        assert list(text_shape(path).columns) == columns
        assert read_table(path).num_rows == content.count("\n1") + content.count("\n2")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("last", "data_type", "value"),
    [
        ("18446744073709551615", pa.uint64(), 2**64 - 1),
        ("18446744073709551616", pa.string(), "18446744073709551616"),
        ("-9223372036854775809", pa.string(), "-9223372036854775809"),
        ("0.5", pa.float64(), 0.5),
    ],
)
def test_integers_are_not_rounded(
    tmp_path: Path, is_late: bool, last: str, data_type: pa.DataType, value: object
) -> None:
    path = tmp_path / "t.csv"
    rows = 1_500_000 if is_late else 10
    path.write_text("id,n\n" + "1000000,2\n" * rows + f"{last},3\n")
    assert not is_late or path.stat().st_size > 8 << 20
    table = read_table(path)
    assert table.schema.types == [data_type, pa.int64()]
    assert table["id"][-1].as_py() == value


def test_damaged_arrow_is_refused_before_a_reader_follows_it(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array(["one", "two", "three"] * 10)})
    for make, name in ((pa.ipc.new_file, "f.arrow"), (pa.ipc.new_stream, "s.arrows")):
        path = tmp_path / name
        with make(path, batch.schema) as writer:
            writer.write_batch(batch)
        offsets = batch.column(0).buffers()[1].to_pybytes()
        content = path.read_bytes()
        assert content.count(offsets[:124]) == 1
        assert read_table(path).num_rows == 30
        damaged = np.frombuffer(offsets[:124], np.int32).copy()
        damaged[2:4] = 1 << 30, (1 << 31) - 1
        path.write_bytes(content.replace(offsets[:124], damaged.tobytes()))
        with pytest.raises(pa.ArrowInvalid, match="offset"):
            read_table(path)
