"""The saved state of a :class:`farrow.graph.GraphFeatures`: Arrow IPC, described in its schema.

``_file`` defines the surrounding file.

One record batch holds the live edges, in order of arrival.  The schema's metadata holds the rest as
JSON under ``farrow.graph``: the version, the parameters, the layout of the rows, and the other
state of the graph.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from farrow.exceptions import DamagedFile
from farrow.graph import _file
from farrow.graph._transformer_stream import TransformerStream

if TYPE_CHECKING:
    from farrow.graph.features import GraphFeatures

# Version of the state, not of the surrounding file.
VERSION = 1
_KEY = b"farrow.graph"


def state_of(features: GraphFeatures) -> dict[str, Any]:
    """Parameters and graph, with the edges as a table under ``edges``."""
    parameters = features.get_params(deep=False)
    cluster = parameters.pop("cluster")
    if cluster is not None:
        raise TypeError(
            f"graph {cluster.name!r} lies in cluster memory: it stays there, and a GraphFeatures "
            "of its name continues with it"
        )
    stream = features._stream
    state: dict[str, Any] = {"version": VERSION, "parameters": _plain(parameters), "stream": None}
    if stream is None:
        return {**state, "edges": pa.table({})}
    graph = stream.native.state()
    columns = {name: graph.pop(name) for name in ("sources", "targets", "times")}
    ids = graph.pop("ids")
    if ids is not None:
        columns["ids"] = ids
    columns |= {f"column {n}": values for n, values in enumerate(graph.pop("columns"))}
    graph["order"] = graph["order"].tolist()
    state["stream"] = {"graph": graph, **stream.state()}
    return {**state, "edges": pa.table(columns)}


def restored(features: GraphFeatures, state: dict[str, Any]) -> GraphFeatures:
    """Give a new transformer the graph of a state from ``state_of``."""
    saved = state["stream"]
    if saved is None:
        return features
    edges = state["edges"]
    graph = dict(saved["graph"])

    def column(name: str) -> Any:
        return np.ascontiguousarray(edges.column(name).to_numpy())

    graph["order"] = np.array(graph["order"], np.int64)
    graph["ids"] = column("ids") if "ids" in edges.column_names else None
    graph |= {name: column(name) for name in ("sources", "targets", "times")}
    count = sum(name.startswith("column ") for name in edges.column_names)
    graph["columns"] = [column(f"column {number}") for number in range(count)]
    stream = TransformerStream.restored(features, saved)
    stream.native.restore(graph)
    return features._keep(stream)


def write_state(path: str | os.PathLike[str], features: GraphFeatures) -> None:
    """Write a transformer to a file, atomically."""
    state = state_of(features)
    edges = state.pop("edges")
    edges = edges.replace_schema_metadata({_KEY: json.dumps(state).encode()})

    def write_body(sink: BinaryIO) -> None:
        with pa.ipc.new_file(sink, edges.schema) as writer:
            writer.write_table(edges)

    _file.write(path, write_body)


def read_state(cls: type[GraphFeatures], path: str | os.PathLike[str]) -> GraphFeatures:
    """Read a file of ``write_state``."""
    version, body = _file.read(path)
    try:
        edges = pa.ipc.open_file(pa.py_buffer(body)).read_all()
        edges.validate(full=True)
        state = json.loads((edges.schema.metadata or {})[_KEY])
        if state["version"] != VERSION:
            raise ValueError(f"its state is of version {state['version']}, not {VERSION}")
        features = restored(cls(**state["parameters"]), {**state, "edges": edges})
    except Exception as error:
        # Any exception: no transformer wrote this content.
        name = os.fspath(path)
        raise DamagedFile(f"{name} holds no graph features: {error}", name) from error
    if version == 1:
        warnings.warn(
            f"{os.fspath(path)} is of version 1, which has no checksum: a damaged file may go "
            "unnoticed. Save it again.",
            UserWarning,
            stacklevel=3,
        )
    return features


def _plain(value: Any) -> Any:
    """Parameters as JSON types: lists and plain numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, range, set, np.ndarray)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return value
