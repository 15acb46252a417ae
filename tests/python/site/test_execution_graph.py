"""The example of an execution graph: its tables are those of one process, and nothing is copied."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import farrow

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "execution_graph.py"


@pytest.fixture(scope="module")
def graph() -> ModuleType:
    # The processes of its steps load it from its file.
    spec = importlib.util.spec_from_file_location("execution_graph", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["execution_graph"] = module
    sys.path.insert(0, str(EXAMPLE.parent))
    spec.loader.exec_module(module)
    return module


def test_steps_hand_on_their_tables_in_place(graph: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    graph.write_source(source, 5_000)
    raw = graph.parse(source)
    clean = graph.clean(raw)
    joined = graph.join(clean, graph.accounts(source))
    features = graph.features(joined)
    assert raw.num_rows > clean.num_rows == joined.num_rows > 4_500
    with graph.running_nodes(tmp_path, 32 << 20) as sockets:
        graph.run_graph(sockets, source)
        client = farrow.connect(sockets["c"])
        found = {one.step: one for one in graph.written(client)}
        assert client.get("graph/parse").equals(raw)
        assert client.get("graph/join").equals(joined)
        assert client.get("graph/features").equals(features)
        model = client.get("graph/train")
        assert model.equals(graph.train(features))
    assert model["right"][0].as_py() > 0.9
    assert {name: one.node for name, one in found.items()} == {
        name: step.node for name, step in graph.STEPS.items()
    }
    assert {name: one.inputs for name, one in found.items()} == {
        name: step.inputs for name, step in graph.STEPS.items()
    }
    assert len({one.pid for one in found.values()}) == len(graph.STEPS)
    assert [one.copied for one in found.values()] == [0] * len(graph.STEPS)
    assert found["join"].read > found["clean"].nbytes // 2 > 0
    text = graph.as_text(list(found.values()))
    assert [line.split()[0] for line in text.splitlines()[1:]] == list(found)
    drawn = graph.as_mermaid(list(found.values()))
    assert "subgraph node_b [node b]" in drawn
    assert ' MB" --> train\n' in drawn


def test_a_step_that_fails_ends_the_graph(graph: ModuleType, tmp_path: Path) -> None:
    with graph.running_nodes(tmp_path, 32 << 20) as sockets:
        with pytest.raises(RuntimeError, match="step parse failed"):
            graph.run_graph(sockets, tmp_path / "nowhere.csv")
        assert not farrow.connect(sockets["a"]).contains("graph/train")
