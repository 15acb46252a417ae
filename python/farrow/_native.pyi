"""Types of the extension module.  ``farrow`` re-exports the public part."""

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from farrow._values._types import BufferLocation, NodeInfo, Target
from farrow.dataset import FarrowDataset
from farrow.events import Subscription
from farrow.exceptions import InternalError
from farrow.huge import Partition, Schema

__all__ = [
    "CancelToken",
    "Client",
    "CopyBuffers",
    "DissociatedMessages",
    "EventStream",
    "GraphEngine",
    "GraphFrozen",
    "GraphPlan",
    "GraphSegment",
    "HugeTable",
    "InternalError",
    "LabArena",
    "ObjectRef",
    "SharedReference",
    "Writer",
    "__version__",
    "bridge_series",
    "certs_init",
    "certs_issue",
    "certs_revoke",
    "connect",
    "export_dissociated",
    "fetch_pages",
    "import_dissociated",
    "lab_fit",
    "lab_methods",
    "lab_profile",
    "leftovers",
    "node_main",
    "open_shared",
    "panic_on_purpose",
    "put_shared",
    "share",
    "stats_units",
    "survey",
    "table_statistics",
]

# Kinds, sizes, triggers, accounts, edges, and the number of omitted patterns.
_GraphPatterns: TypeAlias = tuple[
    list[str], list[int], list[int], list[list[int]], list[list[int]], int
]

__version__: str

@final
class CancelToken:
    """Ends waiting calls of another thread."""

    def cancel(self) -> None:
        """End the calls that run with this token, now and later, within a tenth of a second."""
    def run(self, body: Callable[[], Any]) -> Any:
        """Call ``body`` on this thread, so that ``cancel`` ends the calls in it."""

@final
class ObjectRef:
    """A reference to one sealed object.  It can be pickled and sent to another process.

    ``ObjectRef(id, name=None)`` makes one from the 16 bytes of an id; other lengths raise
    ``InvalidArgument``.

    Examples:
        >>> reference = client.put(b"hello", "ObjectRef")
        >>> client.get(farrow.ObjectRef(reference.id)).to_pybytes()
        b'hello'
    """

    def __new__(cls, id: bytes, name: str | None = None) -> ObjectRef: ...
    @property
    def id(self) -> bytes:
        """The 16 bytes of the id.  An id is never used again for another object.

        Examples:
            >>> len(client.put(b"hello").id)
            16
        """
    @property
    def name(self) -> str | None:
        """The name under which the object was put or requested, or None.

        Examples:
            >>> client.put(b"hello", "ObjectRef.name").name
            'ObjectRef.name'
        """
    def hex(self) -> str:
        """The id as text.

        Returns:
            32 hexadecimal digits.

        Examples:
            >>> farrow.ObjectRef(bytes(16)).hex()
            '00000000000000000000000000000000'
        """
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[type[ObjectRef], tuple[bytes, str | None]]: ...

@final
class Writer:
    """An object of bytes that is being written; made by ``Client.create``.

    As a context manager it seals the object at the end of the block, and aborts if an exception
    leaves the block.

    Examples:
        >>> with client.create(5, "Writer") as writer:
        ...     _ = writer.write(b"hello")
        >>> client.get("Writer").to_pybytes()
        b'hello'
    """

    @property
    def buffer(self) -> memoryview:
        """A writable view of the object's bytes in shared memory; one dimension, ``nbytes`` bytes.

        Raises:
            InvalidArgument: the object was sealed or aborted.

        Examples:
            >>> writer = client.create(5, "Writer.buffer")
            >>> writer.buffer[:] = b"hello"
            >>> client.get(writer.seal()).to_pybytes()
            b'hello'
        """
    def write(self, data: Any, at: int | None = None) -> int:
        """Copy bytes into the object, as into a file.

        Large copies use all cores and bypass the caches, without the GIL.  On memory that is
        coherent only inside a node, this saves work at the seal; after a use of ``buffer`` the seal
        writes back all cache lines of the object.

        Args:
            data: anything with the buffer protocol.
            at: offset in bytes; None: where the last write ended.

        Returns:
            The number of bytes written.

        Raises:
            InvalidArgument: the data does not fit, and nothing was written; or the object was
                sealed or aborted.
            TypeError: the data has no buffer.

        Examples:
            >>> writer = client.create(10)
            >>> writer.write(b"hello"), writer.write(b"world")
            (5, 5)
            >>> client.get(writer.seal()).to_pybytes()
            b'helloworld'
        """
    @property
    def nbytes(self) -> int:
        """The size of the object in bytes.

        Examples:
            >>> with client.create(10) as writer:
            ...     writer.nbytes
            10
        """
    def seal(self) -> ObjectRef:
        """Make the object immutable and visible.  Its memory becomes read-only in every process.

        Views taken from ``buffer`` stay readable; a write through one faults.

        Returns:
            A reference to the object.

        Raises:
            InvalidArgument: the object was sealed or aborted.
            Disconnected: the node has ended.

        Examples:
            >>> writer = client.create(5)
            >>> _ = writer.write(b"hello")
            >>> client.get(writer.seal()).size
            5
        """
    def abort(self) -> None:
        """Release the memory without sealing.  Does nothing if the object is already sealed or
        aborted.

        Raises:
            Disconnected: the node has ended.

        Examples:
            >>> writer = client.create(5, "Writer.abort")
            >>> writer.abort()
            >>> client.contains("Writer.abort")
            False
        """
    def __enter__(self) -> Writer: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Literal[False]: ...

@final
class Client:
    """A connection to one node; made by ``farrow.connect``.  Safe to use from many threads.

    Values obtained from a client keep the connection alive, so ``close`` is seldom needed.  As a
    context manager the client closes at the end of the block.  ``target in client`` is
    ``contains``; ``len(client)`` is the number of objects at its node in its namespace.  In the
    examples of its methods ``client`` is a connection to node "a", which is the only one of its
    cluster.

    Examples:
        >>> reference = client.put(pa.table({"n": [1, 2, 3]}), "Client")
        >>> client.get("Client")["n"].to_pylist()
        [1, 2, 3]
        >>> with farrow.connect(client.address) as other:
        ...     "Client" in other
        True
    """

    def close(self) -> None:
        """Release the connection.  Later calls of this client raise ``Disconnected``.

        Values obtained from the client stay valid: the session with the node ends with the last
        of them.  Does nothing if the client is already closed.

        Examples:
            >>> other = farrow.connect(client.address)
            >>> value = other.get(client.put(b"hello"))
            >>> other.close()
            >>> value.to_pybytes()
            b'hello'
        """
    def __enter__(self) -> Client: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Literal[False]: ...
    def __contains__(self, target: Target, /) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def _repr_html_(self) -> str: ...
    @property
    def address(self) -> str:
        """The path of the node's socket, as ``farrow.connect`` takes it.

        Examples:
            >>> farrow.connect(client.address).address == client.address
            True
        """
    @property
    def namespace(self) -> str:
        """The namespace of the connection; "" is the default one.

        Names, lists and subscriptions are those of the namespace.  To read by name in another one,
        connect again: ``farrow.connect(client.address, namespace="other")``.  An id or a reference
        finds its object from every namespace: namespaces keep names and quotas apart, not secrets.

        Examples:
            >>> client.namespace
            ''
        """
    @property
    def node(self) -> str | None:
        """The name of the node in whose memory this client puts objects; None without a cluster.

        Raises:
            Disconnected: the node has ended.

        Examples:
            >>> client.node
            'a'
        """
    def at(self, node: str) -> Client:
        """The same connection, with the memory of another node.

        Objects that the new client puts or creates are in the memory of that node; ``stats``,
        ``list`` and ``evict`` apply to that node.  Every client finds objects on all nodes.

        Args:
            node: name of the node, or "nearest" or "most-free" to choose it by the rule of ``put``
                among the nodes whose memory is mapped here.  The choice stays: ``node`` of the new
                client is the name of the chosen node.

        Returns:
            A client of the same connection.

        Raises:
            InvalidArgument: there is no such node; the message lists the nodes.
            NodeLost: the node cannot be reached.
            NodeUnreachable: the node is alive, but this client's node cannot map its memory.
            NotPermitted: the node admits no client of this client's node.

        Examples:
            >>> client.at("a").node, client.at("nearest").node
            ('a', 'a')
        """
    def nodes(self) -> builtins.list[NodeInfo]:
        """The nodes of the cluster, as the client's own node sees them.

        Returns:
            One ``NodeInfo`` for each node, by number, with how its memory is reached, its free
            bytes, and its cost as measured.  Empty without a cluster.  Lost nodes stay in the list
            until ``forget_node``.

        Raises:
            Disconnected: the node has ended.

        Examples:
            >>> [(node.name, node.reach) for node in client.nodes()]
            [('a', 'live')]
        """
    def forget_node(self, name: str) -> None:
        """Declare that all processes of a lost node have ended, and release their memory.

        Use this with care: memory that such a process still reads is reused.  If this client's
        node could not read the names of the lost node, those names become free.  Call this on each
        remaining node.

        Args:
            name: name of the lost node.

        Raises:
            InvalidArgument: the node is not lost, or not known.

        Examples:
            >>> client.forget_node("a")
            Traceback (most recent call last):
            farrow.exceptions.InvalidArgument: ...
        """
    def create_namespace(
        self,
        name: str,
        *,
        nbytes: int | None = None,
        objects: int | None = None,
        writers: Iterable[int] | None = None,
    ) -> None:
        """Create a namespace.  It persists over restarts of the node until ``drop_namespace``.

        Args:
            name: 1 to 63 bytes of UTF-8 without NUL.  The name of an object in the namespace has
                up to 255 bytes, including this name and one separator byte.
            nbytes: limit in bytes for its clients and objects, including memory left by clients
                that ended; None: no limit.
            objects: limit for sealed objects; None: no limit but the node's.  With a limit, each
                put sends a message to the node.
            writers: ids of up to 8 users that may put and delete in it, besides the node's owner
                and root; other admitted users only read.  None: all may write.

        Raises:
            AlreadyExists: a namespace of this name exists.
            LimitReached: the node has no room for more namespaces.
            InvalidArgument: the name, a limit or the writers are invalid.
            PermissionDenied: the node belongs to another user.

        Examples:
            >>> client.create_namespace("team", nbytes=1 << 20, objects=100)
            >>> team = farrow.connect(client.address, namespace="team")
            >>> team.put(b"hello", "create_namespace").name
            'create_namespace'
            >>> client.contains("create_namespace")
            False
        """
    def drop_namespace(self, name: str) -> None:
        """Delete a namespace that has no objects and no clients.

        Args:
            name: name of the namespace.

        Raises:
            NamespaceInUse: it has objects or clients; the exception has their numbers.
            NotFound: the namespace does not exist.
            PermissionDenied: the node belongs to another user.

        Examples:
            >>> client.create_namespace("unused")
            >>> client.drop_namespace("unused")
        """
    def namespaces(self) -> builtins.list[dict[str, Any]]:
        """All namespaces and their use, the default one ("") first.

        Returns:
            For each namespace a dict: name; nbytes, objects and writers as given to
            ``create_namespace`` (None: no limit); used_bytes, used_objects and clients: its
            current use.

        Raises:
            Disconnected: the node has ended.

        Examples:
            >>> client.namespaces()[0]["name"]
            ''
        """
    def permit(
        self, node: str, rights: str | Iterable[str], *, namespace: str | None = None
    ) -> None:
        """Set the rights of another node's clients on objects in this node's memory.

        The rule applies to every later message and persists over restarts of the node.  A client
        retains memory that was granted earlier until it ends.  ``read`` restrains an honest node
        only: a node can read all memory that it maps (SECURITY.md).

        Args:
            node: name of the node, or ``"*"`` for all but this one.
            rights: ``"read"`` (wait for objects and events, restore spilled objects), ``"write"``
                (allocate, reserve names, seal, pin, barriers, flags), ``"delete"`` (delete, evict,
                unpin, replace); an iterable, or a comma-separated text; ``"all"``; ``"none"`` or
                empty: clients of that node are not admitted.
            namespace: name of a namespace, which need not exist yet; ``"*"`` for all; None: that of
                this client.  The closest rule applies: first the one for both names, then the one
                for the namespace, then the one for the node.  Without a rule a node may do
                everything.

        Raises:
            InvalidArgument: a name or a right is invalid.
            LimitReached: the node already has 128 rules.
            PermissionDenied: the node belongs to another user.

        Examples:
            >>> client.permit("b", "read,write")
            >>> client.permissions()
            [{'namespace': '', 'node': 'b', 'rights': ['read', 'write']}]
            >>> client.drop_permission("b")
        """
    def drop_permission(self, node: str, *, namespace: str | None = None) -> None:
        """Remove a rule of ``permit``, so that the next closest one applies.

        Args:
            node: name of the node, or ``"*"``, as in the rule.
            namespace: namespace of the rule; None: that of this client.

        Raises:
            NotFound: there is no rule for this node and namespace.
            PermissionDenied: the node belongs to another user.

        Examples:
            >>> client.permit("c", "none")
            >>> client.drop_permission("c")
        """
    def permissions(self) -> builtins.list[dict[str, Any]]:
        """All rules of ``permit``.

        Returns:
            For each rule a dict: namespace, node, and rights as a list of words.

        Raises:
            Disconnected: the node has ended.

        Examples:
            >>> client.permissions()
            []
        """
    def put(
        self,
        obj: Any,
        name: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        wait: float = 0.0,
        node: str | None = None,
        replace: bool = False,
        statistics: bool = False,
    ) -> ObjectRef:
        """Seal a value in shared memory.

        Buffers from this client's ``memory_pool`` stay in place; all others are copied once.  A put
        without a name and without buffers in place sends no message: it also succeeds while the
        node restarts.

        Args:
            obj: the value; ``get`` returns the same kind, or the equivalent Arrow kind:

                =============================================  ==================================
                put                                            get
                =============================================  ==================================
                pyarrow Table, RecordBatch, Array,             the same
                ChunkedArray, Tensor
                ``numpy.ndarray`` (``memmap``) of any type     ``numpy.ndarray``
                without Python objects
                bytes, bytearray, mmap, pyarrow.Buffer,        ``pyarrow.Buffer``
                flat buffers of single bytes (memoryview,
                ctypes)
                ``__arrow_c_stream__``: RecordBatchReader,     Table; of one column
                polars, pandas 3, DuckDB results               ChunkedArray
                ``__arrow_c_array__``                          Array; with columns RecordBatch
                =============================================  ==================================

                Other values are rejected, and the message suggests a conversion: buffers of other
                items (``array.array``, typed memoryviews, ctypes arrays), masked arrays and other
                numpy subclasses, Arrow scalars, schemas and sparse tensors, torch tensors.
            name: up to 255 bytes of UTF-8; None: the object has an id only, and its seal is usually
                no event (see ``farrow.events``).
            metadata: labels that ``list`` shows; 4096 bytes in all.  A label ``farrow.statistics``
                of a table is left out: it belongs to the object from which it was read.
            wait: seconds to wait for room if the region, or a quota of objects, is full.  Requests
                are served in order of arrival.
            node: name of the node that stores the object; None: this client's.  If the memory of
                that node cannot be mapped, the node brings the object over the network.  Two names
                are rules, which no node can have as its name:

                - "nearest": the first node with room in this order: the client's own node, nodes
                  whose memory is mapped, nodes reached over the network; the cheaper one first, by
                  the measurements of ``nodes``.
                - "most-free": the node with the most free bytes.

                Costs within a factor of two are equal, and equal nodes are taken by name.  If no
                node has free room, nodes that can evict or spill are tried in the same order, and
                the first one gets the time ``wait``.  With ``replace`` only mapped nodes are tried.
                Without a cluster both rules mean the client's own node.
            replace: take the place of the object of this name on the same node, if there is one, in
                one step: the name always leads to one of the two.  The old object stays if this put
                fails, and its memory until the last reader releases it.  There must be room for
                both.
            statistics: count nulls, bounds and order of the columns of a table or record batch, for
                parts of its rows: scans by ``farrow.dataset``, the engines and ``farrow.sql`` skip
                the parts that cannot match a filter.  A large batch is divided alone, into parts of
                about 131,072 rows or more.  Smaller batches that follow each other are joined up to
                that number, and never divided.  If more parts result than fit, the number of rows
                is doubled until they do.  All rows are read, also those of buffers that stay in
                place.
                The statistics are a label of at most 4,000 bytes, ``farrow.statistics``; if the
                others in ``metadata`` leave no room for them, there are none.

        Returns:
            A reference to the object.

        Raises:
            AlreadyExists: the name is taken.
            OutOfMemory, TooManyObjects: the region is full, after ``wait`` seconds; by a rule, that
                of every node: the message says of each why it cannot take the object.
            TooLarge: the object would not fit an empty region; raised at once.
            QuotaExceeded: the client (``farrow node --client-bytes``, ``--client-objects``) or its
                namespace is at its limit: raised at once for bytes, after ``wait`` seconds for
                objects.
            PermissionDenied: this user may not write in the namespace.
            NotPermitted: the other node does not let clients of this node write in the namespace.
            InvalidArgument: the name is too long or contains a NUL.
            UnsupportedType: this kind of value cannot be put.
            Disconnected: the node has ended.
            NodeLost: the node of the object or of its name cannot be reached; or an object of a
                lost node may have the name.
            NodeUnreachable: the node is alive, but its memory can neither be mapped nor reached by
                network.
            CutOff: the object has a name, and the node does not reach the majority of the cluster.

        Examples:
            >>> table = pa.table({"price": [1.5, 2.5]})
            >>> reference = client.put(table, "put/trades", metadata={"day": "monday"})
            >>> client.get(reference).equals(table)
            True
            >>> client.get(client.put(np.arange(6).reshape(2, 3))).shape
            (2, 3)
        """
    def get(
        self,
        target: Target,
        *,
        timeout: float = 0.0,
        columns: Iterable[str] | None = None,
        rows: slice | None = None,
        as_: Literal["pandas", "polars", "numpy", "torch", "duckdb"] | None = None,
        lazy: bool = False,
    ) -> Any:
        """The value of an object, zero-copy and read-only.

        With ``columns`` or ``rows`` the value is a part of an Arrow object. If this machine cannot
        map the memory of the object's node, only the bytes of the part are transferred, once for
        all processes of the machine. Dictionaries are transferred whole, and strings and nested
        values of which the rows use all but 64 KiB.

        With ``lazy`` no bytes of such an object are transferred at first: each page is, when it is
        first read. A read of a page of a lost node ends the process with the signal SIGBUS;
        ``farrow.fetch`` brings pages in advance and raises instead. A forked child that reads the
        value gets SIGSEGV. Objects in mapped memory, bytes, and objects below 128 KiB are returned
        as without ``lazy``.

        Args:
            target: a reference, a name, or an id of 16 bytes.
            timeout: seconds to wait for the object to be sealed.
            columns: names of columns of a table or record batch, in the order of the result; None:
                all columns.
            rows: a slice with step 1 of the rows of an Arrow object; None: all rows.
            as_: the library whose value is returned: a pandas frame or series with Arrow types, a
                polars frame or series, numpy arrays or torch tensors (a dict by column for
                tables), a DuckDB relation.  In place where the library can use Arrow memory; a
                store to it faults.  None: the kind that was put.
            lazy: transfer the pages of a table, another Arrow object or a numpy array when they
                are first read; not with ``columns`` or ``rows``.

        Returns:
            The kind that was put: a pyarrow Table, RecordBatch, Array or ChunkedArray, a numpy
            array, or a ``pyarrow.Buffer`` for bytes.  With ``as_``: a value of that library.

        Raises:
            NotFound: the object does not exist, and timeout is 0.
            Timeout: the object was not sealed in time.
            InvalidArgument: a column does not exist, or exists more than once; the object has no
                columns or Arrow rows; ``as_`` is no known library; ``lazy`` with a part.
            PermissionDenied: ``lazy``, and neither this process nor its node may serve page faults.
            OutOfMemory: ``lazy``, and the node has no room for all pages of the object.
            UnsupportedType: the library of ``as_`` has no value of this kind.
            InvalidDescriptor: the description of the object is damaged.
            NodeLost: the object is, or may be, on a node that cannot be reached.
            NodeUnreachable: the object is on a living node whose memory this client's node cannot
                map.
            NotRestored: the object is spilled, and its file is missing or damaged.

        Examples:
            >>> reference = client.put(pa.array([1, 2, 3]), "get/numbers")
            >>> client.get("get/numbers").to_pylist()
            [1, 2, 3]
            >>> client.get(reference.id).to_pylist()
            [1, 2, 3]
            >>> client.get("get/numbers", rows=slice(-2, None)).to_pylist()
            [2, 3]
            >>> client.get("get/numbers", as_="numpy")
            array([1, 2, 3])
        """
    def put_many(
        self,
        objs: Iterable[Any],
        names: Sequence[str | None] | None = None,
        *,
        node: str | None = None,
        statistics: bool = False,
    ) -> builtins.list[ObjectRef]:
        """Like ``put`` for each value, in at most one message: all are sealed, or none.

        Args:
            objs: the values.
            names: a name, or None, for each value; None: no names.
            node: name of the node that stores the objects, or a rule as in ``put``, which chooses
                one node for all of them; None: this client's.
            statistics: count statistics of the tables and record batches among the values, as in
                ``put``.

        Returns:
            A reference for each value.

        Raises:
            InvalidArgument: the numbers of names and values differ.
            AlreadyExists, OutOfMemory, ...: as ``put``.

        Examples:
            >>> references = client.put_many([b"one", b"two"], ["put_many/1", "put_many/2"])
            >>> client.get(references[1]).to_pybytes()
            b'two'
        """
    def get_many(self, targets: Iterable[Target], *, timeout: float = 0.0) -> builtins.list[Any]:
        """Like ``get`` for each target.

        Args:
            targets: references, names or ids.
            timeout: seconds for all of them together.

        Returns:
            The value of each target.

        Raises:
            NotFound, Timeout, ...: as ``get``, if any value cannot be returned.

        Examples:
            >>> references = client.put_many([b"one", b"two"])
            >>> [value.to_pybytes() for value in client.get_many(references)]
            [b'one', b'two']
        """
    def create(
        self,
        nbytes: int,
        name: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        wait: float = 0.0,
        node: str | None = None,
        replace: bool = False,
    ) -> Writer:
        """Allocate an object of bytes, to be written in place and sealed.

        The name is reserved at once, unless the object may replace another.

        Args:
            nbytes: size in bytes.
            name: as in ``put``.
            metadata: as in ``put``.
            wait: as in ``put``, in seconds.
            node: as in ``put``.
            replace: as in ``put``, at the seal.

        Returns:
            A writer of the object.

        Raises:
            AlreadyExists, OutOfMemory, ...: as ``put``.

        Examples:
            >>> with client.create(4, "create") as writer:
            ...     writer.buffer[:] = b"done"
            >>> client.get("create").to_pybytes()
            b'done'
        """
    def create_many(
        self,
        sizes: Iterable[int],
        names: Sequence[str | None] | None = None,
        *,
        node: str | None = None,
    ) -> builtins.list[Writer]:
        """Like ``create`` for each size: all names are reserved, or none.

        Args:
            sizes: size of each object in bytes.
            names: a name, or None, for each object; None: no names.
            node: name of the node that stores the objects, or a rule as in ``put``, which chooses
                one mapped node for all of them; None: this client's.

        Returns:
            A writer for each size.

        Raises:
            InvalidArgument: the numbers of names and sizes differ.
            AlreadyExists, OutOfMemory, ...: as ``put``.

        Examples:
            >>> writers = client.create_many([1, 2])
            >>> [writer.nbytes for writer in writers]
            [1, 2]
            >>> for writer in writers:
            ...     writer.abort()
        """
    def metadata(self, target: Target) -> dict[str, str]:
        """The labels of an object.

        Args:
            target: a reference, a name, or an id of 16 bytes.

        Returns:
            The labels as given to ``put``; empty if there are none.

        Raises:
            NotFound: there is no such object.

        Examples:
            >>> client.metadata(client.put(b"hello", metadata={"unit": "metre"}))
            {'unit': 'metre'}
        """
    def contains(self, target: Target) -> bool:
        """Whether an object is sealed now, on any node.

        Args:
            target: a reference, a name, or an id of 16 bytes.

        Returns:
            True if it is.

        Raises:
            NodeLost: the object may be on a lost node.
            NodeUnreachable: the object is on a living node whose memory this client's node cannot
                map.

        Examples:
            >>> client.contains("contains"), client.contains(client.put(b"hello"))
            (False, True)
        """
    def delete(self, target: Target | Sequence[Target]) -> None:
        """Delete one object, or several.  The memory becomes free when the last reader releases the
        object.

        Args:
            target: a reference, a name or an id; or a sequence of them.

        Raises:
            NotFound: one does not exist; the others are deleted.
            PermissionDenied: one is in another namespace; the others are deleted.

        Examples:
            >>> reference = client.put(b"hello")
            >>> client.delete(reference)
            >>> client.contains(reference)
            False
        """
    def delete_many(self, targets: Iterable[Target]) -> None:
        """Like ``delete`` for each target, in one message to the node.

        Args:
            targets: references, names or ids.

        Raises:
            NotFound: one does not exist; the others are deleted.
            PermissionDenied: one is in another namespace; the others are deleted.

        Examples:
            >>> client.delete_many(client.put_many([b"one", b"two"]))
        """
    def pin(self, target: Target | Sequence[Target]) -> None:
        """Protect one object, or several, from eviction until ``unpin`` or ``delete``.

        A pin belongs to the object: it survives this client and the node's daemon.  Pinning twice
        is the same as pinning once.

        Args:
            target: a reference, a name or an id; or a sequence of them.

        Raises:
            NotFound: one does not exist; the others are pinned.

        Examples:
            >>> client.pin(client.put(b"hello", "pin"))
            >>> client.list("pin")["pinned"].to_pylist()
            [True]
        """
    def unpin(self, target: Target | Sequence[Target]) -> None:
        """Allow eviction of one object, or several, again.

        Args:
            target: a reference, a name or an id; or a sequence of them.

        Raises:
            NotFound: one does not exist; the others are unpinned.

        Examples:
            >>> reference = client.put(b"hello")
            >>> client.pin(reference)
            >>> client.unpin(reference)
        """
    def evict(self, nbytes: int, *, node: str | None = None) -> dict[str, int]:
        """Evict objects, least recently used first, until ``nbytes`` more are free.

        Only objects of this client's namespace are evicted, except those held, pinned, or still
        being written.  A node that spills writes them to files instead, and a get restores them.

        Args:
            nbytes: bytes to free.
            node: node whose memory to free; None: this client's.

        Returns:
            objects: the number evicted; bytes: the memory freed, less than ``nbytes`` only if
            nothing more can be evicted.  Also the remaining bytes by reason: held, pinned (held or
            not), granted (being written), retiring (deleted and still held).

        Raises:
            NodeLost: the node cannot be reached.
            NotPermitted: the other node does not let clients of this node evict.

        Examples:
            >>> client.evict(0)["objects"]
            0
        """
    def wait(
        self, targets: Iterable[Target], *, num: int | None = None, timeout: float = 10.0
    ) -> builtins.list[bool]:
        """Wait until some of several objects are sealed.

        Args:
            targets: references, names or ids.
            num: the number of sealed targets that suffices; None: all.
            timeout: seconds.

        Returns:
            For each target, whether it is sealed; fewer than ``num`` only after the timeout.

        Raises:
            InvalidArgument: num is more than the number of targets.
            NodeUnreachable: one is on a living node whose memory this client's node cannot map.

        Examples:
            >>> client.wait([client.put(b"hello"), "not there"], num=1, timeout=5.0)
            [True, False]
        """
    def barrier(self, name: str, parties: int, *, timeout: float = 60.0) -> None:
        """Wait until ``parties`` clients, on any nodes, have reached the barrier ``name``.

        The barrier is then ready for the next round.  The last client wakes the others; there is no
        polling.

        Args:
            name: 1 to 255 bytes; unique in the cluster for each namespace.
            parties: number of clients, 1 to 4096; the same in all of them.
            timeout: seconds.

        Raises:
            BarrierBroken: a party ended, or its timeout expired; the exception names it in all
                waiters.
            NodeLost: the node that stores the barrier is lost.
            CutOff: the cluster excluded this client's node during the wait.

        Examples:
            >>> client.barrier("start", 1, timeout=5.0)
        """
    def set_flags(self, name: str, bits: int, *, clear: int = 0) -> int:
        """Clear the flags of ``clear``, then set those of ``bits``.  Each name has 64 flags.

        One node stores the flags in its private memory; all are clear at first.  When nodes join,
        rejoin, or leave in order, another node may take over the flags; the call then waits for
        five seconds at most.  If a node is killed or excluded, its flags are lost.

        Args:
            name: 1 to 255 bytes; unique in the cluster for each namespace.
            bits: flags to set, as a mask of 64 bits.
            clear: flags to clear first, as a mask of 64 bits.

        Returns:
            All flags of that name.

        Raises:
            NodeLost: the node that stores the flags is lost, or did not receive them in time.
            CutOff: this node stores the flags, and has no lease or did not receive them in time.

        Examples:
            >>> client.set_flags("set_flags", 0b101)
            5
            >>> client.set_flags("set_flags", 0b010, clear=0b001)
            6
        """
    def wait_flags(self, name: str, bits: int, *, timeout: float = 60.0) -> int:
        """Wait until all flags of ``bits`` are set.  There is no polling.

        Args:
            name: 1 to 255 bytes; unique in the cluster for each namespace.
            bits: flags to wait for, as a mask of 64 bits.
            timeout: seconds.

        Returns:
            All flags of that name.

        Raises:
            Timeout: the flags were not set in time.
            NodeLost: the node that stores the flags is lost, did not receive them in time, or lost
                them when its daemon was killed.
            CutOff: the cluster excluded this client's node during the wait; or this node stores the
                flags, and has no lease or did not receive them in time.

        Examples:
            >>> client.set_flags("wait_flags", 0b11)
            3
            >>> client.wait_flags("wait_flags", 0b01, timeout=5.0)
            3
        """
    def list(
        self,
        prefix: str = "",
        *,
        where: Mapping[str, str] | None = None,
        node: str | None = None,
        all_nodes: bool = False,
        strict: bool = False,
    ) -> pa.Table:
        """The sealed objects whose name begins with ``prefix``; with "" also those without a name.

        Lists objects of this client's namespace only, in the memory of one node or of all.

        Args:
            prefix: first characters of the name.
            where: only objects whose metadata has all these pairs.
            node: name of the node; None: this client's.
            all_nodes: objects of all nodes except those that are lost or refuse the client.  If
                there are any, the metadata of the schema has the key ``farrow.not_listed``: an
                object in JSON with the name of each such node and the reason.
            strict: with ``all_nodes``, raise the error of such a node.

        Returns:
            A table with one row for each object.  Columns: name (string), id
            (fixed_size_binary[16]), kind (string), bytes (uint64: size of the value), sealed_at
            (timestamp[ns, UTC]), creator_pid (uint32), metadata (map of string to string), pinned
            (bool), last_use (timestamp[ns, UTC]: the last get or the seal, by a clock with a
            resolution of some milliseconds) and spilled (bool: in a file until the next get; its
            metadata is not listed then).  With ``all_nodes`` also node (string; null without a
            cluster).  ``to_pylist`` of the times needs pandas: Python's datetime has no
            nanoseconds.  Select the other columns before, or cast the times to int64.  IPython
            shows the first 50 objects as a table, if it was there when ``farrow`` was imported.

        Raises:
            NodeLost: the node given cannot be reached; with ``strict``, any node.
            NotPermitted: the node given refuses the client; with ``strict``, any node.
            NodeUnreachable: with ``all_nodes``, the objects of a living node cannot be listed from
                this one; use ``node`` to list other nodes one by one.

        Examples:
            >>> _ = client.put_many([b"one", b"three"], ["list/1", "list/3"])
            >>> client.list("list/").select(["name", "bytes"]).to_pydict()
            {'name': ['list/1', 'list/3'], 'bytes': [3, 5]}
        """
    def subscribe(
        self,
        prefix: str = "",
        *,
        kinds: Iterable[Literal["sealed", "deleted", "evicted", "spilled", "restored"]]
        | None = None,
        start: Literal["now", "oldest"] = "now",
        timeout: float | None = None,
        node: str | None = None,
    ) -> Subscription:
        """Changes of objects, as an iterator and an asyncio stream; see ``farrow.events``.

        Args:
            prefix: only objects whose name begins with it; "": all, also those without a name.
            kinds: only these kinds of event; None: all.  Gaps are always reported.
            start: ``"now"``, or ``"oldest"``: from the oldest event that the node remembers.
            timeout: the iteration ends after this many seconds without an event; None: at
                ``close``.
            node: node whose objects to follow; None: this client's.  If the node is lost, the
                stream ends with ``NodeLost``, after the events that the node published.

        Returns:
            A subscription.

        Raises:
            InvalidArgument: the prefix, a kind or the node is invalid.
            NodeLost: the node is lost.
            NotPermitted: clients of this client's node may not read there.

        Examples:
            >>> with client.subscribe("subscribe/", kinds=["sealed"]) as events:
            ...     _ = client.put(b"hello", "subscribe/1")
            ...     events.next(timeout=5.0).name
            'subscribe/1'
        """
    def huge_table(
        self,
        name: str,
        schema: Schema | None = None,
        *,
        sort_by: str | None = None,
        partition_by: Iterable[str] | None = None,
    ) -> HugeTable:
        """Open a table whose rows are in the memory of many nodes; see ``farrow.huge``.

        With a schema, the table is created if it does not exist.  A table that is created with an
        order or with partitions keeps them: an append that breaks them is refused.

        Args:
            name: up to 200 bytes of UTF-8, including the name of the namespace.
            schema: a ``pyarrow.Schema``, or anything with ``__arrow_c_schema__``; None: the table
                must exist.
            sort_by: a column of integers, dates or times by which the rows ascend, in the order of
                their positions; with partitions, the rows of each partition.  It has no nulls.
            partition_by: names of columns that have one value in each chunk, or only nulls.

        Returns:
            The table.

        Raises:
            NotFound: the table does not exist, and no schema was given.
            InvalidArgument: the table has another schema (the message names the first difference),
                order or partitions, an object of this name is not a huge table, or a column cannot
                have an order.
            FarrowError: a node that may store the table is lost; the message names the node.

        Examples:
            >>> trades = client.huge_table("huge_table", pa.schema({"price": pa.float64()}))
            >>> trades.rows
            0
        """
    def stats(self, *, node: str | None = None) -> dict[str, Any]:
        """Counters of a node, and of this client on it; sizes in bytes.

        Args:
            node: name of the node; None: this client's.

        Returns:
            At least capacity, used, free, objects, holds and clients, and the counters of the
            fabric.  Notebooks show the dictionary as a table with units.

        Raises:
            NodeLost: the node cannot be reached.

        Examples:
            >>> stats = client.stats()
            >>> 0 <= stats["used"] <= stats["capacity"]
            True
        """
    def memory_pool(
        self,
        *,
        strict: bool = False,
        node: str | None = None,
        expect: int | Sequence[int] | None = None,
    ) -> pa.MemoryPool:
        """An Arrow memory pool in the region: ``put`` does not copy buffers allocated from it.

        The pool uses free memory.  It evicts and spills nothing, because its buffers may never
        become an object.  When the region is full, the pool returns ordinary memory, because parts
        of Arrow (its CSV reader) abort the process if an allocation fails.  A later ``put`` copies
        those buffers, and makes room for all of them or raises.

        Args:
            strict: an allocation that does not fit raises ``pyarrow.ArrowMemoryError`` instead.
            node: node whose region to use; ``put`` with the same ``node`` then does not copy.  If
                that region cannot be mapped, the pool is in the client's own node, and ``put``
                transfers the buffers from there.  A rule as in ``put`` chooses a node with room for
                ``expect`` now; a later ``put`` by the same rule may choose another one.  To put in
                the chosen node, use ``at``: ``there = client.at("most-free")``.
            expect: total bytes of the buffers, or the size of each buffer.  The result is a
                separate pool with that room reserved.  Unused objects are evicted for it, but only
                if that suffices.  Memory left over is released when the pool is collected.

        Returns:
            A pool for pyarrow's ``memory_pool=`` arguments.

        Raises:
            OutOfMemory: there is no room for ``expect`` bytes, by a rule at no node.
            NodeLost: the node cannot be reached.
            ImportError: this installation has no pool for the imported pyarrow; the message lists
                the pyarrow series that it has.  All other calls work without a pool.

        Examples:
            >>> numbers = pa.array(range(10_000), memory_pool=client.memory_pool())
            >>> all(buffer["in_region"] for buffer in client.locate(numbers))
            True
        """
    def _shut_down_node(self) -> None:
        """End the node in good order, as SIGTERM does.

        Raises:
            PermissionDenied: the node belongs to another user.
            Disconnected: the node has ended.
        """
    def _change_settings(
        self, changes: dict[str, int | str | bool | None], namespace: str | None = None
    ) -> None:
        """Change settings of the node (``farrow node set``): all of them, or none.

        Args:
            changes: new values of client_bytes, client_objects, cache (None: no limit), memory,
                is_evicting and log; for a namespace, of bytes and objects.
            namespace: name of the namespace; None: settings of the node.

        Raises:
            InvalidArgument: the node has no such setting, or a value is invalid.
            NotFound: the namespace does not exist.
            PermissionDenied: the node belongs to another user.
        """
    def _drain(self, is_draining: bool | None = None) -> dict[str, Any]:
        """Begin or end the drain of the node (``farrow node drain``); None: only report.

        Returns:
            node (its name), is_draining, untold (members that do not know it yet, each with the
            reason), moved (objects), moved_bytes, reserved (names of objects that clients are
            writing), undone (nodes that were lost while an object moved to them), and moving_to (a
            node, or "").

        Raises:
            InvalidArgument: there is no node to which objects could move.
            PermissionDenied: the node belongs to another user.
        """
    def _get_with_statistics(self, target: Target) -> tuple[Any, str | None, bytes, str, int]:
        """The value of an object, the text of its statistics or None, its id, the name of its node
        ("" without a cluster), and the bytes of its buffers: all of the same object.

        Raises:
            FarrowError: as ``get``.
        """
    def _move_object(self, id: bytes, node: str, timeout: float) -> None:
        """Move an object with a name from this client's draining node to another one.

        Args:
            id: id of the object, of 16 bytes.
            node: name of the other node.
            timeout: seconds after which the object stays here if it could not move.

        Raises:
            NotFound: the object is deleted.
            OutOfMemory, QuotaExceeded, NodeLost: the other node does not take it.
            FarrowError: it could not move within the timeout, with the reason.
        """
    def _overview(self, cells: int, held: int = 0) -> dict[str, Any]:
        """The data of ``farrow top``, with a map of the node's memory in ``cells`` parts.

        Up to ``held`` holds of all clients are listed, at most 4,096: each client has ``held``, the
        ids of objects as dicts of ``hi`` and ``lo`` (64 bits each), and ``are_all_held``.
        """
    def _origins(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Those of ``ids`` that are copies of objects of other nodes, with the ids of these.

        Raises:
            Disconnected: the node has ended.
        """
    def _offset(self, address: int, size: int) -> int | None:
        """Offset in the region of ``size`` bytes at an address of this process; None outside the
        region."""
    def locate(self, obj: Any) -> builtins.list[BufferLocation]:
        """The location of each buffer of a value.

        ``in_region`` and ``offset`` refer to this client's node; use ``client.at(node)`` for
        another.

        Args:
            obj: a pyarrow value, a numpy array, or bytes.

        Returns:
            For each buffer a dict: column, chunk, buffer (its index), address in this process,
            offset in the region or None, bytes, and in_region.

        Raises:
            UnsupportedType: the value has no buffers.

        Examples:
            >>> value = client.get(client.put(pa.array([1, 2, 3])))
            >>> [(part["bytes"], part["in_region"]) for part in client.locate(value)]
            [(24, True)]
        """

def connect(
    address: str | None,
    timeout: float,
    program: str | None = None,
    arguments: Sequence[str] | None = None,
    namespace: str = "",
) -> Client:
    """See ``farrow.connect``; ``program`` and ``arguments`` start a private node."""

def node_main(args: Sequence[str]) -> int:
    """Run a node in this process until it ends; ``args`` are the flags of ``farrow node``.

    Returns the exit code.
    """

def certs_init(folder: str | PathLike[str], days: int) -> None:
    """Create the certificate authority of a cluster: ``ca.pem``, and ``ca.key`` for its owner only.

    Raises:
        FileExistsError: one of the files exists.
        InvalidArgument: ``days`` is out of range.
    """

def certs_issue(
    folder: str | PathLike[str], name: str, hosts: Sequence[str], days: int
) -> tuple[str, str]:
    """Certify a node by the certificate authority in a folder.

    Args:
        folder: folder with ca.pem and ca.key.
        name: name of the node.
        hosts: addresses and DNS names at which peers may connect to it without its name.
        days: days of validity.

    Returns:
        The files: its certificate (NAME.pem), and its key (NAME.key, for its owner only).

    Raises:
        FileExistsError: one of the files exists.
        InvalidArgument: the name, a host or the number of days is invalid.
        FarrowError: the authority is damaged, or not made by ``certs_init``.
    """

def certs_revoke(folder: str | PathLike[str], name: str) -> str:
    """Revoke the certificate NAME.pem in the folder of its certificate authority.

    Args:
        folder: folder with ca.pem, ca.key and NAME.pem.
        name: name of the node.

    Returns:
        The list of revoked certificates (ca.crl), which each node needs beside its ca.pem.

    Raises:
        OSError: a file cannot be read or written, or the certificate is of another authority.
        InvalidArgument: the name is invalid.
        FarrowError: the authority is damaged, or not made by ``certs_init``.
    """

def leftovers(dirs: Sequence[str | PathLike[str]], *, remove: bool = False) -> list[dict[str, Any]]:
    """Files and mounts that ended nodes left, in ``dirs`` and in the default folders.

    Each entry has ``kind`` (``"region"``, ``"mount"``, ``"socket"`` or ``"marks"``), ``path`` and
    ``bytes``.  With ``remove``, ``error`` has the reason if a removal failed.  Files that a process
    serves, opens or maps are never included.
    """

def stats_units() -> dict[str, str]:
    """The unit of each statistic of a node that ``Client.stats`` returns.

    ``"bytes"``, ``"count"``, ``"milliseconds"``, ``"identifier"``, ``"text"`` or ``"structure"``.
    """

def survey() -> dict[str, Any]:
    """Capabilities of this machine: fabrics, huge pages, cache-line operations, limits."""

@final
class CopyBuffers:
    """Two private buffers of ``nbytes``, in huge pages where the kernel has any, to measure the
    best copy of this machine.

    Raises:
        InvalidArgument: 0 bytes.
        MemoryError: the machine has less memory.
    """

    def __new__(cls, nbytes: int) -> CopyBuffers: ...
    def copy(self) -> float:
        """Copy one to the other with all cores, bypassing the caches; returns the seconds taken."""

def export_dissociated(client: Client, target: Target) -> DissociatedMessages:
    """An object in Arrow's Dissociated IPC form, with offsets relative to the region.

    Raises:
        InvalidArgument: IPC cannot express it (dictionaries of dictionaries), or it is not Arrow.
    """

def import_dissociated(
    client: Client,
    refs: Iterable[Target],
    schema: bytes,
    batches: Sequence[tuple[Sequence[bytes], bytes]],
) -> pa.Table:
    """The table that such messages describe, over the buffers of the objects ``refs``.

    Raises:
        InvalidDescriptor: a message is inconsistent, or points outside of the objects.
    """

@final
class GraphEngine:
    """The graph of a transaction stream and its features; ``farrow.graph`` checks the arguments.
    Matrices are float64 in any memory order: ``[edge id, source, target, timestamp, ...]``;
    ``ends`` are the same four as int64.  An invalid setting or row raises ValueError, more rows
    than a graph holds raise MemoryError; the graph is then unchanged.
    """

    def __new__(
        cls,
        *,
        is_causal: bool,
        time_window: int | None,
        edges_max: int | None,
        patterns: Sequence[tuple[str, int, Sequence[int]]],
        cycle_length: int,
        statistics: tuple[int, Sequence[int], Sequence[int]] | None,
        threads: int,
        work_max: int | None,
        keeps_ids: bool,
        segment: int | None = None,
    ) -> GraphEngine: ...
    def width(self) -> int:
        """Number of columns that are added to a row."""
    def start(self, matrix: npt.NDArray[np.float64]) -> None:
        """Clear the graph and add rows in order."""
    def learn(self, matrix: npt.NDArray[np.float64]) -> None:
        """Add rows."""
    def transform(self, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add rows; returns the rows with their features appended."""
    def patterns(
        self, matrix: npt.NDArray[np.float64], most: int
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """As ``transform``, with the completed patterns."""
    def learn_columns(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
    ) -> None:
        """Add rows."""
    def learn_ahead(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
    ) -> None:
        """Add rows whose features ``transform_ahead`` computes later."""
    def transform_ahead(self, rows: int) -> npt.NDArray[np.float64]:
        """Features of the next rows that were learned ahead: at most ``rows``."""
    def drop_ahead(self) -> None:
        """Skip the features of all rows that were learned ahead."""
    def transform_columns(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
    ) -> npt.NDArray[np.float64]:
        """Add rows; returns their features only."""
    def patterns_columns(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
        most: int,
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """As ``transform_columns``, with the completed patterns."""
    def preview(
        self, matrix: npt.NDArray[np.float64], most: int | None
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """The rows with the features that they would get now, and patterns unless ``most`` is None.
        The graph does not change."""
    def preview_columns(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
        most: int | None,
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """As ``preview``; the features only."""
    def knows(self, accounts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the graph knows each account."""
    def state(self) -> dict[str, Any]:
        """The contents of the graph, as columns."""
    def restore(self, state: dict[str, Any]) -> None:
        """Restore the graph from the result of ``state``."""
    def stats(self) -> dict[str, Any]:
        """Contents and cost of the graph; see ``farrow.graph.GraphFeatures.stats``."""
    def freeze(self) -> GraphFrozen | None:
        """A copy of the oldest full span that has no segment, or None."""
    def attach(self, segment: GraphSegment) -> None:
        """Replace the edges that a segment was made from by the segment.

        Raises:
            ValueError: it is not the next segment, or names accounts otherwise than earlier ones.
        """
    def adopt(
        self,
        accounts: npt.NDArray[np.int64],
        segments: Sequence[GraphSegment],
        late: dict[str, Any],
        next: int,
    ) -> None:
        """Fill an empty graph with segments and the results of ``accounts`` and ``stragglers``;
        later rows are numbered from ``next`` on."""
    def split(
        self, matrix: npt.NDArray[np.float64]
    ) -> tuple[builtins.list[npt.NDArray[np.int64]], builtins.list[npt.NDArray[np.float64]]]:
        """A matrix as arguments of ``transform_columns``."""
    def accounts(self, start: int, /) -> npt.NDArray[np.int64]:
        """The accounts whose internal numbers are ``start`` and above, if these numbers are
        permanent: in batch mode with simple cycles.  Otherwise none; segments name accounts."""
    def edges_of(
        self, account: int, list: int, start: int, end: int, /
    ) -> builtins.list[npt.NDArray[np.int64]]:
        """Edges of an account between two times: the accounts at the other ends, and the times.
        ``list`` is 0 for edges out, 1 for edges in, 2 for self-loops."""
    def stragglers(self) -> dict[str, Any]:
        """Late edges that are in no segment, as columns."""
    def begin(self) -> None:
        """Make the next call's rows provisional, until ``keep`` or ``undo``."""
    def keep(self) -> None:
        """Commit provisional rows, and remove the edges that they expired."""
    def undo(self) -> None:
        """Remove provisional rows: the graph is as it was before them."""
    def next_number(self) -> int:
        """Sequence number of the next row."""
    def is_draining(self) -> bool:
        """Whether edges that a segment holds have yet to be removed from this process. Costs the
        same for any number of edges; ``stats()`` counts them."""
    def expired(self) -> builtins.list[dict[str, int]]:
        """Segments that left the window since the last call."""
    def transform_share(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
        share: tuple[int, int],
    ) -> npt.NDArray[np.float64]:
        """As ``transform_columns``, for one of several shares of the work; the shares' results add
        up to the whole."""

@final
class GraphFrozen:
    """A copy of a full span of a graph's edges."""

    def about(self) -> dict[str, int]:
        """The span: times, sequence numbers and counts, as ``GraphSegment`` takes them."""
    def plan(self) -> GraphPlan:
        """Compute the sizes of its lists; may be called once."""

@final
class GraphPlan:
    """A span of a graph's edges that will be a segment (``docs/formats/segment.md``)."""

    def about(self) -> dict[str, int]:
        """The span: times, sequence numbers and counts, as ``GraphSegment`` takes them."""
    def sizes(
        self,
    ) -> tuple[int, int, builtins.list[int], builtins.list[int], int, int, builtins.list[int]]:
        """Lengths of index, accounts, starts, entries, times, ids and values."""
    def fill(
        self,
        index: npt.NDArray[np.uint64],
        accounts: npt.NDArray[np.int64],
        starts: Sequence[npt.NDArray[np.int32]],
        entries: Sequence[npt.NDArray[np.uint64]],
        times: npt.NDArray[np.uint64],
        ids: npt.NDArray[np.int64],
        values: Sequence[npt.NDArray[np.float64]],
    ) -> None:
        """Write the segment into arrays of these lengths."""

@final
class GraphSegment:
    """A segment over pyarrow buffers.  It keeps references to them; they must not change."""

    def __new__(
        cls,
        of: dict[str, int],
        index: pa.Buffer,
        accounts: pa.Buffer,
        starts: Sequence[pa.Buffer],
        entries: Sequence[pa.Buffer],
        times: pa.Buffer,
        ids: pa.Buffer,
        values: Sequence[pa.Buffer],
    ) -> GraphSegment: ...
    def about(self) -> dict[str, int]:
        """The span: times, sequence numbers and counts, as the constructor takes them."""
    @property
    def nbytes(self) -> int:
        """Total bytes of its buffers."""

@final
class HugeTable:
    """A table whose chunks are in the memory of many nodes; made by ``Client.huge_table``.

    See ``farrow.huge``.  Safe to use from many threads.  Appended rows are in the memory of the
    client's own node unless ``append`` names another.  Every method but ``drop`` raises NotFound if
    the table was dropped.  If a node with rows of the table is lost, the error names the node.

    Examples:
        >>> trades = client.huge_table("HugeTable", pa.schema({"price": pa.float64()}))
        >>> trades.append(pa.table({"price": [1.5, 2.5]})).rows
        2
        >>> trades.table()["price"].to_pylist()
        [1.5, 2.5]
    """

    @property
    def name(self) -> str:
        """The name of the table.

        Examples:
            >>> trades = client.huge_table("HugeTable.name", pa.schema({"price": pa.float64()}))
            >>> trades.name
            'HugeTable.name'
        """
    @property
    def schema(self) -> pa.Schema:
        """The schema with which the table was created.

        Examples:
            >>> trades = client.huge_table("HugeTable.schema", pa.schema({"price": pa.float64()}))
            >>> trades.schema.names
            ['price']
        """
    @property
    def sort_by(self) -> str | None:
        """The column by which the rows of each partition ascend; None: they have no order.

        Examples:
            >>> schema = pa.schema({"day": pa.date32(), "price": pa.float64()})
            >>> client.huge_table("HugeTable.sort_by", schema, sort_by="day").sort_by
            'day'
        """
    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that have one value in each chunk.

        Examples:
            >>> schema = pa.schema({"country": pa.string(), "price": pa.float64()})
            >>> table = client.huge_table("partition_by", schema, partition_by=["country"])
            >>> table.partition_by
            ('country',)
        """
    @property
    def rows(self) -> int:
        """The number of rows: one more than the position of the last row, gaps included.

        Raises:
            NotFound: the table was dropped.

        Examples:
            >>> trades = client.huge_table("HugeTable.rows", pa.schema({"price": pa.float64()}))
            >>> trades.rows
            0
        """
    @property
    def version(self) -> int:
        """The number of appends.  The rows of a version never change.

        Raises:
            NotFound: the table was dropped.

        Examples:
            >>> trades = client.huge_table("HugeTable.version", pa.schema({"price": pa.float64()}))
            >>> trades.append(pa.table({"price": [1.5]})).version, trades.version
            (1, 1)
        """
    def append(
        self,
        data: Any,
        position: int | None = None,
        *,
        node: str | None = None,
        timeout: float = 10.0,
        statistics: bool = True,
    ) -> Partition:
        """Add rows as one chunk.

        Args:
            data: a pyarrow RecordBatch or Table, or a value that ``Client.put`` stores as one.
                Buffers from the memory pool of that node stay in place, others are copied once.  A
                node whose memory cannot be mapped fetches the rows over the network.
            position: position of the first row; None: after the last row.
            node: name of the node that stores the rows, or a rule as in ``Client.put``; None: the
                client's.
            timeout: seconds to wait for room, and to retry after concurrent appends.
            statistics: count nulls, bounds and order of the columns, by which ``farrow.dataset``
                skips chunks. The count reads all rows, also those that stay in place.

        Returns:
            The partition with the rows.

        Raises:
            RowsTaken: some of these rows exist already.
            InvalidArgument: there are no rows, the schema differs (the message names the first
                difference), the rows break the order or the partitions of the table (the message
                has the values), ``statistics`` is false for such a table, the table would have
                more than 2^63 - 1 rows, or the node does not exist.
            Timeout: a concurrent append won each attempt.  After this error, Disconnected and
                NodeLost the rows may be in the table: compare ``version``, or append with
                ``position``, which refuses them a second time.
            OutOfMemory, QuotaExceeded, ...: as ``Client.put``.

        Examples:
            >>> trades = client.huge_table("HugeTable.append", pa.schema({"price": pa.float64()}))
            >>> trades.append(pa.table({"price": [1.5, 2.5]})).position
            0
            >>> trades.append(pa.table({"price": [3.5]}), position=2).version
            2
        """
    def table(
        self,
        version: int | None = None,
        *,
        columns: Iterable[str] | None = None,
        rows: slice | None = None,
    ) -> pa.Table:
        """Rows in order, zero-copy and read-only.

        Where a node's memory cannot be mapped, only chunks with such rows are transferred, and of
        them only these columns and rows, once for all processes of the machine.

        Args:
            version: the rows as of this version; None: the newest.
            columns: names of the columns, in this order; None: all.
            rows: a slice of rows with step 1; None: all.

        Returns:
            A table whose chunks are in the memory of the nodes that store them, or in that of the
            client's own node if the former cannot be mapped.

        Raises:
            RowsMissing: there is a gap among these rows; the exception has the first gap.
            InvalidArgument: the version does not exist yet, or a column is unknown or ambiguous.
            InvalidDescriptor: a chunk is damaged.
            OutOfMemory: the own node has no room for chunks of nodes that cannot be mapped.

        Examples:
            >>> trades = client.huge_table("HugeTable.table", pa.schema({"price": pa.float64()}))
            >>> for price in 1.5, 2.5:
            ...     _ = trades.append(pa.table({"price": [price]}))
            >>> trades.table()["price"].to_pylist(), trades.table(1)["price"].to_pylist()
            ([1.5, 2.5], [1.5])
            >>> trades.table(columns=["price"], rows=slice(1, 2))["price"].to_pylist()
            [2.5]
        """
    def dataset(self, version: int | None = None) -> FarrowDataset:
        """The rows as a ``pyarrow.dataset.Dataset`` that skips chunks by their statistics.

        Args:
            version: the rows as of this version; None: the newest.

        Returns:
            A dataset that DuckDB, polars and pyarrow scan in place; see ``farrow.dataset``.

        Raises:
            RowsMissing: there is a gap before the last row; the exception has the first gap.
            InvalidArgument: the version does not exist yet.

        Examples:
            >>> trades = client.huge_table("HugeTable.dataset", pa.schema({"price": pa.float64()}))
            >>> for price in 1.5, 2.5:
            ...     _ = trades.append(pa.table({"price": [price]}))
            >>> import pyarrow.compute as pc
            >>> cheap = pc.field("price") < 2
            >>> trades.dataset().to_table(filter=cheap)["price"].to_pylist()
            [1.5]
            >>> [part.position for part in trades.dataset().partitions(cheap)]
            [0]
        """
    def partitions(self, version: int | None = None) -> builtins.list[Partition]:
        """The rows and node of each chunk, to run work near the data.

        Args:
            version: the rows as of this version; None: the newest.

        Returns:
            A ``farrow.huge.Partition`` for each chunk, by position.

        Raises:
            InvalidArgument: the version does not exist yet.

        Examples:
            >>> trades = client.huge_table("partitions", pa.schema({"price": pa.float64()}))
            >>> _ = trades.append(pa.table({"price": [1.5, 2.5]}))
            >>> [(part.position, part.rows, part.node) for part in trades.partitions()]
            [(0, 2, 'a')]
        """
    @property
    def _id(self) -> bytes:
        """The id of the table: one that is dropped and created again has another."""
    def _statistics(self, version: int, after: int) -> builtins.list[tuple[Partition, bool, Any]]:
        """Each chunk, whether its memory is mapped, and its statistics as ``farrow.dataset`` reads
        them, or None; None also for chunks of versions up to ``after``."""
    def wait(
        self, *, rows: int | None = None, version: int | None = None, timeout: float = 10.0
    ) -> int:
        """Wait for rows, or for a version.

        Args:
            rows: wait until the first ``rows`` rows exist, without a gap.
            version: wait for this version.
            timeout: seconds.

        Returns:
            The version of the table at that time.

        Raises:
            Timeout: the message has the present rows and version.

        Examples:
            >>> trades = client.huge_table("HugeTable.wait", pa.schema({"price": pa.float64()}))
            >>> _ = trades.append(pa.table({"price": [1.5, 2.5]}))
            >>> trades.wait(rows=2, timeout=5.0)
            1
        """
    def drop(self) -> None:
        """Delete the table on all nodes.  Values that were read before stay readable.

        Raises:
            NotFound: the table was dropped before.

        Examples:
            >>> trades = client.huge_table("HugeTable.drop", pa.schema({"price": pa.float64()}))
            >>> trades.drop()
        """
    def _move_part(self, id: bytes, part: str, node: str, timeout: float) -> None:
        """Move a part of the table from this client's draining node to another one.

        A record of a root that has moved is deleted instead.

        Args:
            id: id of the object, of 16 bytes.
            part: its name.
            node: name of the other node.
            timeout: seconds after which the part stays here if it could not move.

        Raises:
            NotFound: the part, or the table, is deleted.
            NodeDraining: the node of the root, if another one than ``node``, has to move it first.
            FarrowError: as ``Client._move_object``.
        """
    def _leave_node(self, timeout: float) -> None:
        """Record that this client's draining node has no rows of the table any more.

        Args:
            timeout: seconds to wait for other clients that write such records.

        Raises:
            NodeDraining: the node of the root has to move it first.
            FarrowError: the node has rows of the table.
        """

@final
class EventStream:
    """The native stream of a ``farrow.events.Subscription``.

    Events are tuples of kind, id, name, bytes of the value, and nanoseconds since 1970; a gap is a
    tuple of "gap" and the number of missed events.
    """

    def take(self) -> tuple[Any, ...] | None:
        """The next event, or None if none is available yet."""
    def next(self, timeout: float | None = None) -> tuple[Any, ...] | None:
        """The next event; None after ``timeout`` seconds, or when the stream was closed."""
    def is_connected(self) -> bool:
        """Whether ``arm`` only sends a message, and does not wait for the node."""
    def arm(self) -> tuple[int | None, float]:
        """A file descriptor to wait for before the next ``take``, or None and seconds to sleep."""
    def close(self) -> None:
        """End the stream, from any thread."""

@final
class DissociatedMessages:
    """Encapsulated metadata messages, and the address of the region that they refer to.

    This object keeps the buffers of the messages alive.
    """

    @property
    def schema(self) -> bytes:
        """The schema message."""
    @property
    def batches(self) -> list[tuple[list[bytes], bytes]]:
        """For each batch the dictionary messages to read before it, and its own message."""
    @property
    def refs(self) -> list[ObjectRef]:
        """The objects that the messages refer to.  If buffers had to be copied, a second object
        holds the copies; the caller must delete it."""
    @property
    def base(self) -> int:
        """Address of the region in this process; offsets in the messages are relative to it."""
    @property
    def length(self) -> int:
        """Size of the region in bytes."""

@final
class SharedReference:
    """A reference to a value, and the lease on it, which begins to run when this object ends."""

    @property
    def message(self) -> bytes:
        """The reference, as ``open_shared`` takes it."""
    @property
    def address(self) -> str:
        """Path of the socket of the node through which the reference was made."""
    def check(self) -> None:
        """Check that each node still serves the memory of the value, without a message while the
        connections are up.

        Raises:
            Disconnected: the node was replaced by one with other memory, or has ended.
            NodeLost: another node with memory of the value has ended.
        """
    def mark(self) -> SharedReference:
        """Put an empty object with the same lease into the same memory: a marker, which the reader
        of a message deletes.

        Returns:
            The reference to the marker.

        Raises:
            OutOfMemory, TooManyObjects, ...: as ``Client.put``.
        """
    def is_there(self) -> bool:
        """Whether the object of the reference was not deleted.  Sends no message while the
        connection is up.

        Returns:
            False: it was deleted, or other memory took the place of its node's.

        Raises:
            Disconnected, NodeLost: the node has ended, and may return.
        """

def table_statistics(text: str, schema: pa.Schema, rows: int) -> list[tuple[int, list[Any]]] | None:
    """The statistics of a put table, from its label ``farrow.statistics``.

    Args:
        text: the value of the label.
        schema: the schema of the table.
        rows: number of its rows.

    Returns:
        For each part, in order, the number of its rows and its statistics as ``farrow.dataset``
        reads them; None for a text of another version, schema or number of rows, and for any other
        text.
    """

def share(obj: Any, min_bytes: int, lease: float) -> SharedReference | None:
    """Make a reference to a value whose buffers are in the memory of nodes.

    Args:
        obj: a value that ``Client.put`` takes.
        min_bytes: fewest bytes in the memory of nodes.
        lease: seconds for which the reference outlives the result and this process.

    Returns:
        None: fewer bytes are there, or fewer than half of the value's.

    Raises:
        OutOfMemory, QuotaExceeded, NotPermitted, ...: as ``Client.put``.
    """

def put_shared(client: Client, obj: Any, lease: float, wait: float) -> SharedReference:
    """Put a value without a name and make a reference to it, in one step.

    Args:
        client: a client of the node that gets the value.
        obj: a value that ``Client.put`` takes.
        lease: seconds for which the reference outlives the result and this process.
        wait: seconds that the node may take to make room.

    Raises:
        OutOfMemory, QuotaExceeded, NotPermitted, ...: as ``Client.put``; nothing was put then.
    """

def open_shared(client: Client, message: bytes) -> Any:
    """The value of a reference.

    Raises:
        NotFound: its lease is over.
        InvalidDescriptor: the message, or what it refers to, is no reference.
        NodeLost, NodeUnreachable: as ``Client.get``.
    """

@final
class LabArena:
    """Memory for measurements, with all pages present.  Jobs write to it: other users of the same
    memory see their data overwritten."""

    @staticmethod
    def private(nbytes: int, *, huge: bool) -> LabArena:
        """Private memory of this process, with ``huge`` in huge pages if available.

        Raises:
            MemoryError: not enough memory; the message has the bytes available.
        """
    @staticmethod
    def region(nbytes: int, directory: str | PathLike[str]) -> LabArena:
        """A region in a directory on a tmpfs, mapped as its writer maps it; its files are removed
        at once.

        Raises:
            MemoryError: there is no room; the message has the numbers.
            FarrowError: the directory cannot hold a region.
        """
    @staticmethod
    def over(buffer: object) -> LabArena:
        """The memory of a writable buffer, which stays referenced.

        Raises:
            BufferError: it is not writable, or empty.
        """
    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""
    @property
    def huge_bytes(self) -> int | None:
        """Bytes of it in huge pages now; None if the kernel does not report them."""
    def run(
        self,
        work: str,
        method: str = "",
        *,
        state: str,
        nbytes: int,
        batch: int = 1,
        samples: int = 1,
        threads: int = 1,
        source: int | None = None,
        width: int = 8,
        stride: int = 8,
    ) -> list[float]:
        """Time one kind of work, without the GIL.

        Args:
            work: "publish", "publish again" (and store to each line), "refresh", "write" (and
                publish), "copy", "load" or "store".
            method: one of ``lab_methods()[work]``; loads and stores have none.
            state: state of the lines before: "uncached", "cached" or "dirty".
            nbytes: size of a range.
            batch: ranges between two readings of the clock.
            samples: number of samples.
            threads: number of threads, each on its own ranges; the slowest counts.
            source: bytes that are written repeatedly to fill a range (default: ``nbytes``).
            width: bytes of a loaded or stored element: 1, 2, 4 or 8.
            stride: bytes from one element to the next.

        Returns:
            Nanoseconds for each range, one number for each sample.

        Raises:
            InvalidArgument: an argument is invalid, or this CPU lacks an instruction; the message
                names it.
        """

def lab_methods() -> dict[str, Any]:
    """Methods of this CPU by kind of work, with "line_bytes", "clock_ns" of a sample, and
    "publish_again_bytes_max": up to this size, the cost of the next store counts in the choice of a
    publish method.
    """

def lab_fit(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """Fit the model "fixed + line * lines" to points (lines, nanoseconds).

    Returns:
        Nanoseconds for each call, nanoseconds for each line, and the root mean square of relative
        errors; None for fewer than two different numbers of lines.
    """

def lab_profile(*, measure: bool = False, keep: bool = False) -> dict[str, Any]:
    """Methods by which Farrow publishes, refreshes and writes on this machine.

    Args:
        measure: measure again, in a fifth of a second at most; else use this process's profile.
        keep: with `measure`, save the result to this user's profile file.

    Returns:
        "origin" ("file", "measured", "default"), "measured_seconds", "machine", "path", "kept",
        "copy" and "copy_from_bytes" (the non-temporal store method on coherent memory, and its
        least length), "all_caches" (cost and least lengths of writing back all caches at once), and
        "steps": for each size in "bytes" the methods to "publish", "refresh" and "write", with
        their nanoseconds; these are None where only one method exists.
    """

def fetch_pages(ranges: builtins.list[tuple[int, int]]) -> int:
    """Bring the pages at addresses: (address, bytes); see ``farrow.fetch``."""

def bridge_series() -> str | None:
    """The libarrow series of the loaded C++ bridge (``"2600"``).  None: this installation has no
    bridge for the imported pyarrow, and therefore no ``memory_pool``."""

def panic_on_purpose(text: str) -> None:
    """Panic, to test that a panic raises ``InternalError``."""
