"""The generator of transactions: same seed same table, right columns, right tails, real files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from farrow import synthetic


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return synthetic.transactions(200_000, seed=3)


def test_same_seed_gives_same_table(table: pa.Table) -> None:
    assert synthetic.transactions(200_000, seed=3).equals(table)
    assert not synthetic.transactions(200_000, seed=4).equals(table)


def test_columns_and_types(table: pa.Table) -> None:
    assert tuple(table.column_names) == synthetic.COLUMNS
    assert table.num_rows == 200_000
    assert table.schema.field("timestamp").type == pa.timestamp("s")
    assert table.schema.field("from account").type == pa.string()
    assert table.schema.field("amount paid").type == pa.float64()
    assert all(column.null_count == 0 for column in table.columns)
    table.validate(full=True)


def test_values_make_sense(table: pa.Table) -> None:
    times = table["timestamp"].to_numpy()
    assert (np.diff(times) >= np.timedelta64(0)).all()
    assert pc.min(table["amount paid"]).as_py() > 0
    assert pc.min(table["amount received"]).as_py() > 0
    assert pc.all(pc.equal(pc.utf8_length(table["from account"]), 9)).as_py()
    # The bank belongs to the account.
    pairs = table.group_by("from account").aggregate([("from bank", "count_distinct")])
    assert pc.max(pairs["from bank_count_distinct"]).as_py() == 1
    stays = pc.equal(table["payment format"], "Reinvestment")
    own = table.filter(stays)
    assert own["from account"].equals(own["to account"])


def test_tail_is_heavy_and_laundering_rare(table: pa.Table) -> None:
    counts = np.sort(pc.value_counts(table["from account"]).field("counts").to_numpy())
    assert counts[-len(counts) // 100 :].sum() > 0.15 * counts.sum()
    assert np.median(counts) < 20
    share = pc.mean(table["is laundering"]).as_py()
    assert 0 < share < 0.01


@pytest.mark.parametrize("rows", [0, 1, 2, 17])
def test_few_rows(rows: int) -> None:
    table = synthetic.transactions(rows)
    table.validate(full=True)
    assert table.num_rows == rows
    assert tuple(table.column_names) == synthetic.COLUMNS


def test_negative_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        synthetic.transactions(-1)


def test_written_files_hold_the_table(tmp_path, table: pa.Table) -> None:
    parquet = synthetic.write(tmp_path / "t.parquet", 200_000, seed=3)
    back = pq.read_table(parquet)
    assert back["from account"].equals(table["from account"])
    assert back["amount paid"].equals(table["amount paid"])
    for name in ("t.csv", "t.csv.gz"):
        path = synthetic.write(tmp_path / name, 1_000, seed=3)
        options = pacsv.ConvertOptions(timestamp_parsers=["%Y/%m/%d %H:%M"])
        read = pacsv.read_csv(path, convert_options=options)
        small = synthetic.transactions(1_000, seed=3)
        assert read["timestamp"].equals(small["timestamp"])
        assert read["to account"].equals(small["to account"])
        assert read["amount received"].equals(small["amount received"])


def test_other_endings_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="xlsx"):
        synthetic.write(tmp_path / "t.xlsx", 10)
    assert list(tmp_path.iterdir()) == []


def test_as_a_program(tmp_path, capsys) -> None:
    target = tmp_path / "t.csv"
    assert synthetic.main([str(target), "--rows", "10"]) == 0
    assert len(target.read_text().splitlines()) == 11
    assert synthetic.main([str(tmp_path / "no" / "t.csv"), "--rows", "10"]) == 1
    assert capsys.readouterr().err.startswith("farrow.synthetic: ")
