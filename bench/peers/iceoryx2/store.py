"""iceoryx2 is no store; its publish-subscribe and blackboard services do the comparable parts.

An object without a name is a sample that is published to one subscriber, which receives it once.
An object with a name is an entry of a blackboard, created in advance, updated and read by copy.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_BORROWED_MAX = 2
# Creating a blackboard compares each key with all earlier ones, in Python: names share entries.
_ENTRIES_MAX = 200


class Store:
    """See ``store_interface.StoreProtocol``."""

    can_name = True
    can_unnamed = True
    is_queue = True
    remarks = (
        "not a store: without a name, loan, write and send to one subscriber, and receive, once;"
        " with a name, update and copy out an entry of a blackboard made beforehand; nothing"
        " can be read twice, late or in a batch"
    )

    def __init__(self) -> None:
        self._prefix = ""
        self._node: Any = None
        self._publisher: Any = None
        self._subscriber: Any = None
        self._entries: dict[str, Any] = {}
        self._value: Any = None

    def server(self, directory: str, capacity: int) -> None:
        """No process holds the data."""

    def connect(self, directory: str) -> None:
        """A node; all its files are named after the scratch directory."""
        import iceoryx2

        iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)
        config = iceoryx2.config.default()
        self._prefix = os.path.basename(directory)
        config.global_cfg.prefix = iceoryx2.FileName.new(f"{self._prefix}_")
        config.global_cfg.root_path = iceoryx2.Path.new(f"{directory}/iceoryx2/")
        self._node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)

    def prepare(self, count: int, size: int, scope: str, role: str) -> None:
        """A service whose subscriber can have ``count`` samples of ``size`` bytes waiting."""
        import iceoryx2

        self._publisher = self._subscriber = None
        name = iceoryx2.ServiceName.new(f"{self._prefix}/{scope}/{count}/{size}")
        service = (
            self._node.service_builder(name)
            .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
            .max_publishers(1)
            .max_subscribers(1)
            .subscriber_max_buffer_size(count)
            .subscriber_max_borrowed_samples(_BORROWED_MAX)
            .open_or_create()
        )
        if role in ("write", "both"):
            self._publisher = service.publisher_builder().initial_max_slice_len(size).create()
        if role in ("read", "both"):
            self._subscriber = service.subscriber_builder().buffer_size(count).create()

    def prepare_names(self, names: list[str], size: int, scope: str, role: str) -> None:
        """A blackboard whose entries the names share, in turn."""
        import iceoryx2

        class Value(ctypes.Structure):
            _fields_ = (("data", ctypes.c_uint8 * size),)

        self._entries.clear()
        name = iceoryx2.ServiceName.new(f"{self._prefix}/{scope}/names")
        builder = self._node.service_builder(name)
        keys = [ctypes.c_uint64(place) for place in range(min(len(names), _ENTRIES_MAX))]
        if role == "write":
            creator = builder.blackboard_creator(ctypes.c_uint64)
            for key in keys:
                creator = creator.add(key, Value())
            port = creator.create().writer_builder().create()
        else:
            port = builder.blackboard_opener(ctypes.c_uint64).open().reader_builder().create()
        entries = [port.entry(key, Value) for key in keys]
        for place, text in enumerate(names):
            self._entries[text] = entries[place % len(entries)]
        self._value = Value()

    def put(self, data: bytes, name: str | None) -> Any:
        """Loan, write, send; or update the entry."""
        if name is not None:
            ctypes.memmove(ctypes.byref(self._value), data, len(data))
            entry = self._entries[name]
            entry.update_with_copy(self._value)
            return name
        sample = self._publisher.loan_slice_uninit(len(data))
        ctypes.memmove(sample.payload_ptr, data, len(data))
        sample.assume_init().send()
        return ""

    def get(self, token: Any) -> Any:
        """The next sample; or a copy of the entry."""
        if isinstance(token, str):
            sample = self._subscriber.receive()
            if sample is None:
                raise RuntimeError("no sample is waiting")
            return sample
        return token.get()

    def view(self, value: Any) -> Any:
        """The bytes of either."""
        if hasattr(value, "payload"):
            return value.payload().as_memory_view()
        return value.data

    def delete(self, tokens: list[Any]) -> None:
        """Samples are freed when received or displaced; entries stay."""

    def export(self, token: Any) -> str:
        """The name; "" for a sample."""
        return str(token)

    def adopt(self, text: str) -> Any:
        """The entry of that name; samples are received in order."""
        return self._entries[text] if text else ""
