"""farrow graph features, patterns and report: what they write, say and refuse."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

pytest.importorskip("sklearn")

from farrow.cli import main
from farrow.cli._graph import _TableWriter, _write_page
from farrow.graph import GraphFeatures, data, generate

ROWS = 6_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up transactions, with twelve rings of some size."""
    path = tmp_path_factory.mktemp("graph") / "t.parquet"
    return generate.write(path, ROWS, seed=4, rings=30, ring_columns=True)


@pytest.fixture
def graph(capsys: pytest.CaptureFixture[str]):
    """Run a command: (exit code, standard error)."""

    def call(*arguments: object) -> tuple[int, str]:
        code = main(["graph", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return call


def test_features_are_those_of_the_transformer(graph, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.parquet"
    patterns = ("fan", "scatter-gather", "vertex-stats")
    code, err = graph(
        "features", source, out, "--patterns", ",".join(patterns), "--window", "96h,fan=6h",
        "--bins", "2,4,8", "--statistics", "fan,mean", "--extras", "payment format",
        "--batch", 500, "--threads", 1,
    )  # fmt: skip
    assert (code, "6,000 rows" in err) == (0, True)
    assert "fan_in" in err
    assert "graph: edges" in err
    written = pq.read_table(out)
    read = data.read(source)
    features = GraphFeatures(
        patterns=patterns,
        window={"fan": "6h", "scatter-gather": "96h", "vertex-stats": "96h"},
        bins=[2, 4, 8],
        statistics=("fan", "mean"),
    )
    expected = features.fit_transform(read.matrix())[:, 6:]
    names = features.get_feature_names_out()[6:]
    # Statistics of columns are named for them: x4 of an array is the first amount of a table.
    ours = [name.replace("x4", read.amounts[0]).replace("x5", read.amounts[1]) for name in names]
    values = np.column_stack([written[name].to_numpy() for name in ours])
    np.testing.assert_allclose(values, expected, rtol=1e-9)
    assert np.count_nonzero(values[:, :9]) > 100
    # Accounts are named, labels and extra columns come along.
    assert written["source"].to_pylist() == read.accounts.of(read.table["source"]).to_pylist()
    assert written["label"].equals(read.table["label"])
    assert written["payment format"].null_count == 0


def test_batches_change_nothing_in_causal_mode(graph, source: Path, tmp_path: Path) -> None:
    outputs = []
    for batch in (97, 4_096):
        out = tmp_path / f"{batch}.arrow"
        assert graph("features", source, out, "--batch", batch, "--bins", "2,4,9", "-q")[0] == 0
        outputs.append(pa.ipc.open_file(out).read_all())
    assert outputs[0].equals(outputs[1])
    out = tmp_path / "batch.parquet"
    code, _ = graph("features", source, out, "--mode", "batch", "--bins", "2,4,9", "-q")
    assert code == 0
    assert pq.read_table(out).column_names == outputs[0].column_names
    assert not pq.read_table(out).equals(outputs[0])


def test_planted_rings_are_found(graph, source: Path, tmp_path: Path) -> None:
    """Every planted cycle that runs forwards and fits in the window is listed, edge by edge."""
    out = tmp_path / "p.parquet"
    code, err = graph(
        "patterns", source, out, "--patterns", "temp-cycle,scatter-gather", "--window", "240h"
    )
    assert code == 0
    found = pq.read_table(out)
    assert f"{found.num_rows:,} patterns" in err
    assert found["pattern"].to_pylist() == list(range(found.num_rows))
    cycles = found.filter(pc.equal(found["kind"], "temp-cycle"))
    edges = [set(one) for one in cycles["edges"].to_pylist()]
    made = data.read(source, extras=["ring", "ring family"])
    accounts = set(made.accounts.names.to_pylist())
    assert set(found["accounts"].combine_chunks().flatten().to_pylist()) <= accounts
    table = made.table.filter(pc.equal(made.table["ring family"], "cycle"))
    looked_for = 0
    for ring in pc.unique(table["ring"]).to_pylist():
        rows = table.filter(pc.equal(table["ring"], ring))
        last = rows["target"].to_pylist()
        forwards = last[:-1] == rows["source"].to_pylist()[1:]
        times = rows["timestamp"].to_numpy()
        if forwards and (np.diff(times) > 0).all():
            looked_for += 1
            wanted = set(rows["edge_id"].to_pylist())
            assert any(wanted <= one for one in edges), ring
    assert looked_for >= 2


def test_patterns_are_limited(graph, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    code, err = graph("patterns", source, out, "--patterns", "fan", "--most", 10, "--batch", 100)
    assert code == 0
    assert "stopped at --most" in err
    table = pacsv.read_csv(out)
    assert table.num_rows == 10
    # A star is listed by its centre and its payments.
    first = table.slice(0, 1).to_pylist()[0]
    assert len(first["edges"].split()) >= first["size"]
    assert ":" in first["accounts"]
    code, _ = graph("patterns", source, out, "--patterns", "fan", "--size-min", 5)
    assert pc.min(pacsv.read_csv(out)["size"]).as_py() == 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, pa.ArrowInvalid])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
def test_an_error_in_the_last_write_leaves_the_earlier_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], suffix: str
) -> None:
    out = tmp_path / f"f{suffix}"
    out.write_text("good")
    table = pa.table({"n": [1, 2, 3]})

    def fail(tables: list[pa.Table]) -> pa.Table:
        raise error("in the last write")

    writer = _TableWriter(out)
    with pytest.raises(error), writer:
        writer.add(table)
        writer._flush()
        writer.add(table)
        monkeypatch.setattr(pa, "concat_tables", fail)
    assert out.read_text() == "good"
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_cannot_be_closed_leaves_the_earlier_one_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "f.arrow"
    out.write_text("good")

    def fail() -> None:
        raise OSError("no space left on device")

    writer = _TableWriter(out)
    with pytest.raises(OSError, match="no space"), writer:
        writer.add(pa.table({"n": [1]}))
        writer._stack.callback(fail)
    assert out.read_text() == "good"
    assert list(tmp_path.iterdir()) == [out]


def test_two_processes_that_write_one_file_have_their_own_parts(tmp_path: Path) -> None:
    assert str(os.getpid()) in _TableWriter(tmp_path / "f.parquet")._part.name


@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_report_draws_the_largest(graph, source: Path, tmp_path: Path, mode: str) -> None:
    page, out = tmp_path / "r.html", tmp_path / "p.parquet"
    # A bin for each size, so that what is largest is no guess.
    bins = ",".join(map(str, range(2, 130)))
    settings = ("--window", "96h", "--mode", mode, "--batch", 512, "--bins", bins)
    names = ("--patterns", "fan,scatter-gather,temp-cycle")
    code, err = graph("report", source, "-o", page, *names, *settings, "--drawings", 2)
    assert (code, "rows/s" in err) == (0, True)
    text = page.read_text()
    assert graph("patterns", source, out, *names, *settings)[0] == 0
    found = pq.read_table(out)
    for kind in ("fan_in", "fan_out", "scatter-gather", "temp-cycle"):
        size = pc.max(found.filter(pc.equal(found["kind"], kind))["size"]).as_py()
        assert f"<b>{kind}</b><span>size {size}</span>" in text, (kind, size)
    without = tmp_path / "t.html"
    assert graph("report", source, "-o", without, "--drawings", 0, "-q")[0] == 0
    assert "none was found" in without.read_text()


def test_a_page_that_cannot_be_written_leaves_the_earlier_one_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``farrow graph report`` opened its page for writing and then failed: no page was left."""
    page = tmp_path / "r.html"
    page.write_text("good")

    def fail(path: Path, text: str, **_: object) -> int:
        path.write_bytes(text.encode()[:3])
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="no space"):
            _write_page(page, "a new page")
    assert page.read_text() == "good"
    assert list(tmp_path.iterdir()) == [page]
    _write_page(page, "a new page")
    assert page.read_text() == "a new page"
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("features", "{in}", "{out}.csv"), "cannot write"),
        (("features", "{in}", "{out}/no/f.parquet"), "no such directory"),
        (("features", "nowhere.csv", "{out}.parquet"), "nowhere.csv: no such file"),
        (("features", "{in}", "{out}.parquet", "--patterns", "fan,star"), "'star'"),
        (("features", "{in}", "{out}.parquet", "--window", "star=6h"), "'star'"),
        (("features", "{in}", "{out}.parquet", "--window", "long"), "window"),
        (("features", "{in}", "{out}.parquet", "--bins", "2,x"), "--bins: 'x'"),
        (("features", "{in}", "{out}.parquet", "--bins", "3,2"), "bins"),
        (("features", "{in}", "{out}.parquet", "--batch", "0"), "--batch is 0"),
        (("features", "{in}", "{out}.parquet", "--columns", "source"), "ROLE=NAME"),
        (("features", "{in}", "{out}.parquet", "--columns", "source=no"), "no column 'no'"),
        (("features", "{in}", "{out}.parquet", "--work-max", "0"), "work_max"),
        (("patterns", "{in}", "{out}.txt"), "cannot write"),
        (("report", "{in}", "-o", "{out}.pdf"), "cannot write"),
    ],
)
def test_errors_are_one_line(
    graph, source: Path, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    places = {"{in}": str(source), "{out}": str(tmp_path / "out")}
    given = list(arguments)
    for key, value in places.items():
        given = [word.replace(key, value) for word in given]
    code, err = graph(*given, "-q")
    assert code == 1
    assert err.startswith("farrow: ")
    assert err.count("\n") == 1
    assert problem in err
    assert list(tmp_path.iterdir()) == []


def test_columns_by_name(graph, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who,whom,when,much,more\na,b,1,2,3\nb,a,2,3,4\n")
    out = tmp_path / "f.parquet"
    columns = "source=who,target=1,timestamp=when,amounts=much+more"
    code, _ = graph(
        "features", path, out, "--columns", columns, "--patterns", "temp-cycle", "--window", "10s"
    )
    assert code == 0
    table = pq.read_table(out)
    assert table.column_names[:6] == ["edge_id", "source", "target", "timestamp", "much", "more"]
    assert table["temp-cycle[2]"].to_pylist() == [0.0, 1.0]


@pytest.mark.parametrize("command", ["features", "patterns"])
def test_the_input_is_not_replaced(graph, source: Path, tmp_path: Path, command: str) -> None:
    """A slip, IN twice: the file was left with the columns of the output alone."""
    path, link = tmp_path / "t.parquet", tmp_path / "link.parquet"
    path.write_bytes(source.read_bytes())
    link.symlink_to(path)
    for output in (path, link):
        code, err = graph(command, path, output)
        assert (code, "the input and the output are the same file" in err) == (1, True)
    assert path.read_bytes() == source.read_bytes()
