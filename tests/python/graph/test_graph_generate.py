"""The generator of transactions: same seed same table, right columns, right tails, real files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from farrow.cli import main
from farrow.graph import generate


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return generate.transactions(200_000, seed=3)


def test_same_seed_gives_same_table(table: pa.Table) -> None:
    assert generate.transactions(200_000, seed=3).equals(table)
    assert not generate.transactions(200_000, seed=4).equals(table)


def test_columns_and_types(table: pa.Table) -> None:
    assert tuple(table.column_names) == generate.COLUMNS
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
    table = generate.transactions(rows)
    table.validate(full=True)
    assert table.num_rows == rows
    assert tuple(table.column_names) == generate.COLUMNS


def test_negative_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        generate.transactions(-1)


def test_written_files_hold_the_table(tmp_path, table: pa.Table) -> None:
    parquet = generate.write(tmp_path / "t.parquet", 200_000, seed=3)
    back = pq.read_table(parquet)
    assert back["from account"].equals(table["from account"])
    assert back["amount paid"].equals(table["amount paid"])
    arrow = generate.write(tmp_path / "t.arrow", 1_000, seed=3)
    assert pa.ipc.open_file(arrow).read_all().equals(generate.transactions(1_000, seed=3))
    for name in ("t.csv", "t.csv.gz"):
        path = generate.write(tmp_path / name, 1_000, seed=3)
        options = pacsv.ConvertOptions(timestamp_parsers=["%Y/%m/%d %H:%M"])
        read = pacsv.read_csv(path, convert_options=options)
        small = generate.transactions(1_000, seed=3)
        assert read["timestamp"].equals(small["timestamp"])
        assert read["to account"].equals(small["to account"])
        assert read["amount received"].equals(small["amount received"])


def test_other_endings_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="xlsx"):
        generate.write(tmp_path / "t.xlsx", 10)
    assert list(tmp_path.iterdir()) == []


def _ends(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Senders and receivers as numbers from one dictionary."""
    both = pa.chunked_array(table["from account"].chunks + table["to account"].chunks)
    codes = both.combine_chunks().dictionary_encode().indices.to_numpy()
    return codes[: table.num_rows], codes[table.num_rows :]


def test_shares_are_those_of_hi_small(table: pa.Table) -> None:
    sender, receiver = _ends(table)
    sent = np.sort(np.bincount(sender))[::-1] / table.num_rows
    assert 0.02 < sent[0] < 0.06
    assert 0.01 < sent[1] < 0.04
    received = np.sort(np.bincount(receiver))[::-1]
    assert received[0] > 50 * np.median(received)
    # Nearly all accounts appear, and pairs come again.
    assert len(np.union1d(sender, receiver)) > 0.95 * 20_000
    loops = sender == receiver
    pairs = np.unique(np.stack([sender, receiver])[:, ~loops], axis=1).shape[1]
    assert pairs < 0.5 * (~loops).sum()
    minutes = table["timestamp"].to_numpy()
    burst = minutes < minutes[0] + np.timedelta64(30, "m")
    assert loops[burst].mean() > 0.6
    assert loops[~burst].mean() < 0.05
    day = (minutes - minutes[0]).astype("timedelta64[D]").astype(int)
    per_day = np.bincount(day, minlength=11)
    assert per_day[0] > 1.5 * per_day[4] > 3 * per_day[2]
    assert 0 < per_day[10:].sum() < 0.01 * table.num_rows


def test_rings_have_the_shapes_of_their_families() -> None:
    table = generate.transactions(60_000, seed=5, rings=150, ring_columns=True)
    assert tuple(table.column_names) == generate.COLUMNS + generate.RING_COLUMNS
    assert table.select(generate.COLUMNS).num_columns == len(generate.COLUMNS)
    members = table.filter(pc.is_valid(table["ring"]))
    assert pc.all(pc.equal(members["is laundering"], 1)).as_py()
    assert pc.count_distinct(members["ring"]).as_py() == 150
    assert pc.count_distinct(members["ring family"]).as_py() == 8
    seen = set()
    for number in range(150):
        ring = members.filter(pc.equal(members["ring"], number))
        family = ring["ring family"][0].as_py()
        sender, receiver = _ends(ring)
        rows = ring.num_rows
        hours = np.ptp(ring["timestamp"].to_numpy()).astype("timedelta64[m]").astype(int) / 60
        assert hours <= 202, family
        if rows < 4:
            continue
        seen.add(family)
        accounts = len(np.union1d(sender, receiver))
        out, into = np.bincount(sender).max(), np.bincount(receiver).max()
        expected = {
            "fan-in": (rows + 1, 1, rows),
            "fan-out": (rows + 1, rows, 1),
            "cycle": (rows, 1, 1),
            "scatter-gather": (rows // 2 + 2, rows // 2, rows // 2),
            "bipartite": (2 * rows, 1, 1),
            "stack": (3 * rows // 2, 1, 1),
            "random": (rows + 1, 1, 1),
            "gather-scatter": (rows + 1, out, rows - out),
        }
        assert (accounts, out, into) == expected[family], family
    assert len(seen) == 8


def test_ring_rows_lie_in_their_minute() -> None:
    few = generate.transactions(400, seed=1, accounts=100, days=1, rings=40, ring_columns=True)
    assert (np.diff(few["timestamp"].to_numpy()) >= np.timedelta64(0)).all()
    assert few["ring"].null_count > 100
    assert 0 < few["ring"].drop_null().length() <= 200


@pytest.mark.parametrize(("name", "value"), [("accounts", 15), ("days", 0), ("rings", -1)])
def test_arguments_out_of_range_are_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        generate.transactions(10, **{name: value})


def test_as_a_command(tmp_path, capsys) -> None:
    target = tmp_path / "t.csv"
    assert main(["graph", "generate", str(target), "--edges", "10"]) == 0
    assert len(target.read_text().splitlines()) == 11
    assert "10 rows" in capsys.readouterr().err
    command = ["graph", "generate", str(tmp_path / "t.parquet"), "-q", "--edges", "900"]
    assert main([*command, "--accounts", "50", "--ring-columns", "--days", "3"]) == 0
    assert pq.read_table(tmp_path / "t.parquet").num_columns == 13
    assert capsys.readouterr().err == ""
    assert main(["graph", "generate", str(tmp_path / "no" / "t.csv"), "--edges", "10"]) == 1
    assert capsys.readouterr().err.startswith("farrow: ")
    assert main(["graph", "generate", str(target), "--edges", "-1"]) == 1
    assert "rows is -1" in capsys.readouterr().err
