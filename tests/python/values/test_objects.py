"""``put_object`` and ``get_object``: any object by pickle, its buffers in shared memory."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import farrow
from conftest import run_python
from farrow._values._objects import MAGIC

if TYPE_CHECKING:
    from conftest import Node


def test_a_model_comes_back_with_its_weights_in_place(node: Node) -> None:
    """A dict of NumPy arrays had to be taken apart by hand, or pickled into private memory."""
    client = farrow.connect(node.socket)
    weights = np.arange(100_000, dtype=np.float64)
    model = {"name": "m", "weights": weights, "none": None, "empty": np.zeros(0)}
    reference = farrow.put_object(model, "model", client=client)
    assert reference.name == "model"
    found = farrow.get_object("model", client=client)
    assert found["name"] == "m"
    assert found["none"] is None
    assert found["empty"].size == 0
    np.testing.assert_array_equal(found["weights"], weights)
    assert client.locate(found["weights"])[0]["in_region"]
    with pytest.raises(ValueError, match="read-only"):
        found["weights"][0] = 1.0
    # The value keeps the object's memory.
    client.delete("model")
    np.testing.assert_array_equal(found["weights"], weights)


def test_a_sparse_matrix_is_used_in_place(node: Node) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    client = farrow.connect(node.socket)
    matrix = sparse.random(2_000, 300, density=0.05, format="csr", random_state=7)
    assert matrix.nnz == 30_000
    for kind in ("csr", "csc", "coo", "bsr"):
        farrow.put_object(matrix.asformat(kind), kind, client=client)
        found = farrow.get_object(kind, client=client)
        assert (found.format, found.shape, found.nnz) == (kind, matrix.shape, matrix.nnz)
        assert (found != matrix.asformat(kind)).nnz == 0
        indices = [found.coords[0]] if kind == "coo" else [found.indices, found.indptr]
        for part in (found.data, *indices):
            assert client.locate(part)[0]["in_region"]
            assert not part.flags.writeable
    # The pickle itself holds no numbers.
    data = client.get("csr")
    assert len(data) < matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes + 4096


@pytest.mark.parametrize("kind", ["LogisticRegression", "RandomForestClassifier"])
def test_a_fitted_model_is_used_in_place(node: Node, kind: str) -> None:
    pytest.importorskip("sklearn")
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    client = farrow.connect(node.socket)
    rng = np.random.default_rng(7)
    features = rng.normal(size=(400, 3_000))
    labels = (features[:, 0] + features[:, 1] > 0).astype(int)
    if kind == "LogisticRegression":
        model: Any = LogisticRegression().fit(features, labels)
    else:
        model = RandomForestClassifier(n_estimators=5, random_state=7).fit(features, labels)
    farrow.put_object(model, "model", client=client)
    found = farrow.get_object("model", client=client)
    np.testing.assert_array_equal(found.predict(features), model.predict(features))
    if kind == "LogisticRegression":
        assert client.locate(found.coef_)[0]["in_region"]
    script = "import farrow; print(farrow.get_object('model').n_features_in_)"
    assert run_python(script, env={"FARROW_SOCKET": node.socket}) == "3000\n"


def test_another_process_reads_it(node: Node) -> None:
    client = farrow.connect(node.socket)
    frame = pd.DataFrame({"n": range(1000), "s": ["x"] * 1000})
    farrow.put_object(frame, "frame", client=client)
    script = "import farrow; print(farrow.get_object('frame')['n'].sum())"
    assert run_python(script, env={"FARROW_SOCKET": node.socket}) == "499500\n"


def test_get_never_unpickles(node: Node) -> None:
    client = farrow.connect(node.socket)
    farrow.put_object(_Bomb(), "bomb", client=client)
    assert bytes(client.get("bomb"))[:8] == MAGIC
    with pytest.raises(RuntimeError, match="it ran"):
        farrow.get_object("bomb", client=client)


def _explode() -> None:
    raise RuntimeError("it ran")


class _Bomb:
    def __reduce__(self) -> Any:
        return _explode, ()


def test_what_cannot_be_pickled_is_refused_and_leaves_nothing(node: Node) -> None:
    client = farrow.connect(node.socket)
    used = client.stats()["used"]
    for value in (lambda: None, (n for n in range(3)), open(__file__)):  # noqa: SIM115
        with pytest.raises(farrow.UnsupportedType, match="cannot pickle"):
            farrow.put_object(value, "name", client=client)
    with pytest.raises(farrow.TooLarge):
        farrow.put_object(np.zeros(1 << 30, np.uint8), "name", client=client)
    assert "name" not in client
    assert client.stats()["used"] == used


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (b"", "it has 0 bytes"),
        (b"x" * 100, "not stored by put_object"),
        (struct.pack("<8sII", MAGIC, 2, 1), "format 2"),
        (struct.pack("<8sII", MAGIC, 1, 0), "0 parts"),
        (struct.pack("<8sII", MAGIC, 1, 1 << 31), "2147483648 parts"),
        (struct.pack("<8sIIQQ", MAGIC, 1, 1, 1 << 60, 1 << 60), "part 0 ends at"),
        (struct.pack("<8sIIQQ", MAGIC, 1, 1, 32, 3) + b"xyz", "cannot be unpickled"),
        (struct.pack("<8sIIQQ", MAGIC, 1, 1, 32, 0), "Ran out of input"),
    ],
)
def test_forged_objects_are_an_error(node: Node, forged: bytes, reason: str) -> None:
    client = farrow.connect(node.socket)
    reference = client.put(forged)
    with pytest.raises(farrow.InvalidDescriptor, match=reason):
        farrow.get_object(reference, client=client)


def test_other_kinds_are_an_error(node: Node) -> None:
    client = farrow.connect(node.socket)
    reference = client.put(np.arange(3))
    with pytest.raises(farrow.InvalidDescriptor):
        farrow.get_object(reference, client=client)
