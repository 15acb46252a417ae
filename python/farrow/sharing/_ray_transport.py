"""A transport of Ray Direct Transport: actors pass tables and arrays by reference.

Ray counts the references to what a method returned.  So the memory of a value returns when the
program has no ``ObjectRef`` to it any more, and no receiver has the value.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import farrow
from farrow import _native
from farrow.exceptions import Disconnected, InvalidArgument
from farrow.sharing import _references

try:
    from ray.experimental import (
        CommunicatorMetadata,
        TensorTransportManager,
        TensorTransportMetadata,
        register_tensor_transport,
    )
except ImportError as error:
    import ray

    raise InvalidArgument(
        f"Ray {ray.__version__} has no transports of other packages; Ray 2.60 has them"
    ) from error

__all__ = ["ArrayTransport", "TableTransport", "register"]

# From the end of Ray's count, when no receiver is on its way, or the death of the source.
_LEASE_SECONDS = 10.0
# How long a node may take to make room for a value that is not in Farrow's memory yet.
_WAIT_SECONDS = 10.0


@dataclass
class _References(TensorTransportMetadata):  # type: ignore[misc]
    """What a receiver needs to rebuild the values of one result."""

    values: list[_references.Reduced] = field(default_factory=list)


class TableTransport(TensorTransportManager):  # type: ignore[misc]
    """Passes ``pyarrow.Table`` objects; Ray makes one in each process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: farrow.Client | None = None
        # By the id of Ray's object, until no process refers to it.
        self._sent: dict[str, list[_native.SharedReference]] = {}

    def tensor_transport_backend(self) -> str:
        return "FARROW"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        # A receiver maps memory, and each of its waits has a deadline.
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> _References:
        shared = [self._share(value) for value in rdt_object]
        with self._lock:
            self._sent[obj_id] = [reference for reference, _ in shared]
        return _References(
            tensor_meta=[_shape(value) for value in rdt_object],
            tensor_device="cpu",
            values=[reduced for _, reduced in shared],
        )

    def _share(self, value: Any) -> tuple[_native.SharedReference, _references.Reduced]:
        """A reference to a value.  A value that is not in the memory of a node is put there."""
        plan = _references.plan(value, 1)
        reference = plan and _native.share(plan.arrow, 1, _LEASE_SECONDS)
        if plan is None or reference is None:
            plan = _references.ReferencePlan(value, _references.open_value)
            try:
                reference = self._put(value)
            except Disconnected:
                # Another node may have taken the place of this one.
                self._client = None
                reference = self._put(value)
        return reference, plan.reduced(reference, None, b"")

    def _put(self, value: Any) -> _native.SharedReference:
        client = self._client = self._client or farrow.connect()
        return _native.put_shared(client, value, _LEASE_SECONDS, _WAIT_SECONDS)

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: _References,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: Sequence[Any] | None = None,
    ) -> list[Any]:
        if target_buffers:
            raise InvalidArgument("a value in Farrow is read in place, not into given buffers")
        return [open(*arguments) for open, arguments in tensor_transport_metadata.values]

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: _References,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError("receivers read by themselves")

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: _References, tensors: list[Any]
    ) -> None:
        with self._lock:
            sent = self._sent.pop(obj_id, None)
        # The leases begin to run.
        del sent

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing to undo: a receive ends by itself."""


class ArrayTransport(TableTransport):
    """Passes ``numpy.ndarray`` objects."""

    def tensor_transport_backend(self) -> str:
        return "FARROW_NUMPY"


def _shape(value: Any) -> tuple[tuple[int, ...], str]:
    if isinstance(value, pa.Table):
        return value.shape, "pyarrow.Table"
    return value.shape, str(value.dtype)


def register() -> None:
    """See ``farrow.ray.register_transport``."""
    import numpy as np

    for transport, data_type in (TableTransport, pa.Table), (ArrayTransport, np.ndarray):
        name = transport.tensor_transport_backend(None)  # type: ignore[arg-type]
        try:
            register_tensor_transport(name, ["cpu"], transport, data_type)
        except ValueError as error:
            if "already registered" not in str(error):
                raise
