"""What the extension module exports.  The public part is re-exported by ``farrow``."""

import builtins
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from farrow._types import BufferLocation, NodeInfo, Target
from farrow.events import Subscription
from farrow.exceptions import InternalError
from farrow.huge import Partition, Schema

__all__ = [
    "ARROW_SO_VERSION",
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
    "Writer",
    "__version__",
    "certs_init",
    "certs_issue",
    "connect",
    "export_dissociated",
    "import_dissociated",
    "lab_fit",
    "lab_methods",
    "lab_profile",
    "leftovers",
    "node_main",
    "panic_on_purpose",
    "survey",
]

# Kinds, sizes, triggers, accounts, edges, and how many patterns were left out.
_GraphPatterns: TypeAlias = tuple[
    list[str], list[int], list[int], list[list[int]], list[list[int]], int
]

ARROW_SO_VERSION: str
__version__: str

@final
class ObjectRef:
    """Names one sealed object.  Can be pickled and sent to another process of the machine."""

    def __new__(cls, id: bytes, name: str | None = None) -> ObjectRef: ...
    @property
    def id(self) -> bytes:
        """The 16 bytes of the id; never used again for another object."""
    @property
    def name(self) -> str | None:
        """The name it was put or asked for under, if any."""
    def hex(self) -> str:
        """The id as 32 hexadecimal digits."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[type[ObjectRef], tuple[bytes, str | None]]: ...

@final
class Writer:
    """An object of bytes that is being written; made by ``Client.create``.

    As a context manager it seals on success and aborts when an exception leaves the block.
    """

    @property
    def buffer(self) -> memoryview:
        """A writable view of the object's bytes in shared memory.

        Raises:
            InvalidArgument: the object was sealed or aborted.
        """
    def write(self, data: Any, at: int | None = None) -> int:
        """Copy bytes to where the last write ended, or to byte ``at``, as into a file.

        Large ones are copied by all cores and past the caches, without the GIL.  On memory that is
        coherent only inside a node what is written so needs no more work at the seal; after a use
        of ``buffer`` all of the object's cache lines do.

        Returns:
            The number of bytes.

        Raises:
            InvalidArgument: they do not fit, and nothing was written; the object was sealed or
                aborted.
            TypeError: it has no buffer.
        """
    @property
    def nbytes(self) -> int: ...
    def seal(self) -> ObjectRef:
        """Make the object immutable and visible; the memory turns read-only in every process.

        Views that were taken of ``buffer`` stay readable; writing through one faults.
        """
    def abort(self) -> None:
        """Give the space back.  Does nothing when already sealed or aborted."""
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
    """A connection to one node.  Safe to use from many threads; made by ``farrow.connect``.

    Values got from it keep the connection alive: there is nothing to close.
    """

    @property
    def address(self) -> str:
        """Path of the node's socket, as ``farrow.connect`` takes it."""
    @property
    def namespace(self) -> str:
        """The namespace it is in since it connected; "" is the default one.

        Names, lists and subscriptions are those of the namespace.  To read by name in another one,
        connect again: ``farrow.connect(client.address, namespace="other")``.  An id or a reference
        leads to its object from every namespace: they keep names and quotas apart, not secrets.
        """
    @property
    def node(self) -> str | None:
        """Name of the node in whose memory it puts; None where there is no cluster."""
    def at(self, node: str) -> Client:
        """The same connection, with the memory of another node.

        What the new client puts, creates and allocates lies there, and ``stats``, ``list`` and
        ``evict`` are about that node.  Objects are found wherever they are, by every client.

        Raises:
            InvalidArgument: there is no such node; the message names those there are.
            NodeLost: it cannot be reached.
            NodeUnreachable: it lives, and its memory cannot be mapped by this client's node.
            NotGranted: it lets no client of this client's node in.
        """
    def nodes(self) -> builtins.list[NodeInfo]:
        """The nodes of the cluster, as the client's own node sees them, by number.

        Empty where there is no cluster.  Nodes that are lost stay until they are forgotten.
        """
    def forget_node(self, name: str) -> None:
        """Say that all processes of a lost node have ended: what they held comes back.

        Memory that they still read would be given to others, so be sure.  Where this client's node
        could not read which names the lost one had, those are free from here on: tell each node
        that remains.

        Raises:
            InvalidArgument: the node is not lost, or not known.
        """
    def create_namespace(
        self,
        name: str,
        *,
        nbytes: int | None = None,
        objects: int | None = None,
        writers: Iterable[int] | None = None,
    ) -> None:
        """Make a namespace, which stays over restarts of the node until it is dropped.

        Args:
            name: 1 to 63 bytes of UTF-8 without NUL.  With it and one byte, the name of an object
                in the namespace has up to 255 bytes.
            nbytes: most bytes that its clients and its objects may take, those left by clients that
                went included; None: all.
            objects: most sealed objects in it; None: as many as the node holds.  Where there is a
                limit, each put is a message to the node.
            writers: ids of up to 8 users that may put and delete in it, besides the node's own and
                root; others that may connect read only.  None: all may write.

        Raises:
            AlreadyExists: there is one of this name.
            LimitReached: the node has no room for more.
            InvalidArgument: the name, a limit or the writers cannot be.
            PermissionDenied: the node is another user's.
        """
    def drop_namespace(self, name: str) -> None:
        """Drop a namespace in which nothing and nobody is.

        Raises:
            NamespaceInUse: with what is in it.
            NotFound: there is none.
            PermissionDenied: the node is another user's.
        """
    def namespaces(self) -> builtins.list[dict[str, Any]]:
        """All namespaces, the default one ("") first.

        Returns:
            For each: name; nbytes, objects and writers as given to ``create_namespace`` (None: no
            limit); used_bytes, used_objects and clients: what and who is in it now.
        """
    def grant(
        self, node: str, rights: str | Iterable[str], *, namespace: str | None = None
    ) -> None:
        """Say what clients of another node may do with objects in this node's memory.

        It holds for every message from now on and over restarts of the node.  Memory that such a
        client was granted before stays its own until it ends.  ``read`` keeps clients out of an
        honest node's way; what a node maps it can read (SECURITY.md).

        Args:
            node: name of the node, or ``"*"`` for all but this one.
            rights: ``"read"`` (wait for objects and events, bring spilled ones back), ``"write"``
                (get memory, take names, seal, pin, barriers, flags), ``"delete"`` (delete, evict,
                unpin); one by one or as a text with commas; ``"all"``; ``"none"`` or empty: a
                client of that node is not let in.
            namespace: name of a namespace, which there may be yet or not; ``"*"`` for all; None:
                that of this client.  The closest rule decides: that for both names, then for the
                namespace, then for the node.  Without any a node may do everything.

        Raises:
            InvalidArgument: a name or a right that there cannot be.
            LimitReached: 128 rules are kept.
            PermissionDenied: the node is another user's.
        """
    def drop_grant(self, node: str, *, namespace: str | None = None) -> None:
        """Take such a rule out, so that the next closest one holds.

        Raises:
            NotFound: there is none for just these two.
            PermissionDenied: the node is another user's.
        """
    def grants(self) -> builtins.list[dict[str, Any]]:
        """All such rules: namespace, node, and rights as a list of words."""
    def put(
        self,
        obj: Any,
        name: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        wait: float = 0.0,
        node: str | None = None,
    ) -> ObjectRef:
        """Seal a value in shared memory.

        Buffers that already lie in this client's ``memory_pool`` stay in place; all others are
        copied in, once. Without a name, and with nothing in place, no message is sent: such a
        call also succeeds while the node is being restarted.

        Args:
            obj: what comes back as the same kind, or as the kind of Arrow's that it stands for:

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

                All else is refused, with what to put instead: buffers of other items
                (``array.array``, typed memoryviews, ctypes arrays), masked arrays and other
                subclasses of numpy's, Arrow scalars, schemas and sparse tensors, torch tensors.
            name: up to 255 bytes of UTF-8; None: the object is known by its id only, and its
                seal is no event.
            metadata: labels that are listed with it; 4096 bytes in all.
            wait: seconds that the node may take to find room when the region, or a quota of
                objects, is full.  Those who wait are served in the order in which they came.
            node: name of the node in whose memory it is to lie; None: this client's.

        Raises:
            AlreadyExists: the name is taken.
            OutOfMemory, TooManyObjects: the region is full, after ``wait`` seconds.
            TooLarge: it would not fit an empty region; at once.
            QuotaExceeded: the client (``farrow node --client-bytes``, ``--client-objects``) or its
                namespace may have no more: bytes at once, objects after ``wait`` seconds.
            PermissionDenied: this user may not write in the namespace.
            NotGranted: this client's node may not write in it in the memory of that one.
            InvalidArgument: the name is too long or has a zero in it.
            UnsupportedType: of the object.
            Disconnected: the node is gone.
            NodeLost: the node that it is to lie at, or to be named by, cannot be reached; or a
                lost node may have the name.
            NodeUnreachable: the node that it is to lie at lives, and its memory cannot be mapped.
            CutOff: the node does not reach most of the cluster, and the object has a name.
        """
    def get(self, target: Target, *, timeout: float = 0.0) -> Any:
        """The value, zero-copy and read-only.

        Args:
            target: what ``put`` returned, a name, or an id of 16 bytes.
            timeout: seconds to wait for it to be sealed.

        Returns:
            The kind that was put: a pyarrow Table, RecordBatch, Array or ChunkedArray, a numpy
            array, or a ``pyarrow.Buffer`` for bytes.

        Raises:
            NotFound: it is not there, and timeout is 0.
            Timeout: it was not sealed in time.
            InvalidDescriptor: its description does not hold together.
            NodeLost: it lies, or may lie, on a node that cannot be reached.
            NodeUnreachable: it lies on a living node whose memory cannot be mapped by this
                client's node.
        """
    def put_many(
        self,
        objs: Iterable[Any],
        names: Sequence[str | None] | None = None,
        *,
        node: str | None = None,
    ) -> builtins.list[ObjectRef]:
        """Like ``put`` for each, in one message at most: all are sealed, or none."""
    def get_many(self, targets: Iterable[Target], *, timeout: float = 0.0) -> builtins.list[Any]:
        """Like ``get`` for each; timeout, in seconds, is for all of them together."""
    def create(
        self,
        nbytes: int,
        name: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        wait: float = 0.0,
        node: str | None = None,
    ) -> Writer:
        """Space for an object of ``nbytes`` bytes, to be written in place and sealed.

        The name is reserved at once.  Takes the arguments of ``put``, and raises what it raises.
        """
    def create_many(
        self,
        sizes: Iterable[int],
        names: Sequence[str | None] | None = None,
        *,
        node: str | None = None,
    ) -> builtins.list[Writer]:
        """Like ``create`` for each size in bytes: all names are reserved, or none."""
    def metadata(self, target: Target) -> dict[str, str]:
        """The labels it was put with.

        Raises:
            NotFound: it is not there.
        """
    def contains(self, target: Target) -> bool:
        """Whether it is sealed now, on any node.

        Raises:
            NodeLost: it may lie on a node that is lost.
            NodeUnreachable: it lies on a living node whose memory cannot be mapped by this
                client's node.
        """
    def delete(self, target: Target | Sequence[Target]) -> None:
        """Forget one object, or several.  Its space is free when the last reader let go of it.

        Raises:
            NotFound: one is not there; the others are deleted.
            PermissionDenied: one is in another namespace; the others are deleted.
        """
    def delete_many(self, targets: Iterable[Target]) -> None:
        """Like ``delete`` for each, in one message to the node."""
    def pin(self, target: Target | Sequence[Target]) -> None:
        """Never evict one object, or several, until ``unpin`` or ``delete``.

        A pin belongs to the object, not to who made it: it survives this client and the node's
        daemon, and pinning twice is pinning once.

        Raises:
            NotFound: one is not there; the others are pinned.
        """
    def unpin(self, target: Target | Sequence[Target]) -> None:
        """Let one object, or several, be evicted again."""
    def evict(self, nbytes: int, *, node: str | None = None) -> dict[str, int]:
        """Evict objects, least recently used first, until ``nbytes`` more are free.

        A node that spills writes them to files instead, and a get brings them back.

        Only such of this client's namespace, and never one that is held by anybody, pinned, or
        still being written.  In the memory of ``node``; None: of this client's node.

        Returns:
            objects: how many went; bytes: what became free with them, less than ``nbytes`` only
            when nothing more may go.  And what stays, in bytes: held, pinned (held or not),
            granted (being written), retiring (deleted and still held).
        """
    def wait(
        self, targets: Iterable[Target], *, num: int | None = None, timeout: float = 10.0
    ) -> builtins.list[bool]:
        """Wait until ``num`` of them are sealed, or ``timeout`` seconds.

        Args:
            targets: names, references or ids.
            num: how many are enough; None: all.
            timeout: seconds.

        Returns:
            For each target whether it is sealed; less than ``num`` only when the time ran out.

        Raises:
            NodeUnreachable: one lies, or is sealed meanwhile, on a living node whose memory cannot
                be mapped by this client's node.
        """
    def barrier(self, name: str, parties: int, *, timeout: float = 60.0) -> None:
        """Wait until ``parties`` clients, on whatever nodes, have come to the barrier ``name``.

        Then it is as new.  Nobody polls: who comes last wakes the others.

        Args:
            name: 1 to 255 bytes, one in the cluster for each namespace.
            parties: how many come, 1 to 4096; all must say the same.
            timeout: seconds.

        Raises:
            BarrierBroken: a party ended, one of those that passed the last time included, or its
                time is over; all that wait are told who it was.
            NodeLost: the node that keeps the barrier is lost.
            CutOff: the other nodes went on without this client's while it waited.
        """
    def set_flags(self, name: str, bits: int, *, clear: int = 0) -> int:
        """Set flags, 64 of each name, after those of ``clear`` were cleared.

        They are kept in the private memory of one node, and all clear at first.  When nodes join,
        come back, or leave in good order, another node may keep the flags, and answers once it
        has them; until then the call waits, for five seconds at most.  If a node is killed or
        excluded, the flags that it kept are lost.

        Returns:
            All flags of that name.

        Raises:
            NodeLost: the node that keeps them is lost, or has not received them in time.
            CutOff: this node keeps them, and has no lease or has not received them in time.
        """
    def wait_flags(self, name: str, bits: int, *, timeout: float = 60.0) -> int:
        """Wait until all flags of ``bits`` are set.  Nobody polls.

        Returns:
            All flags of that name.

        Raises:
            Timeout: they were not within ``timeout`` seconds.
            NodeLost: the node that keeps them is lost, or has not received them in time.
            CutOff: the other nodes went on without this client's while it waited, or this node
                keeps the flags and has no lease or has not received them in time.
        """
    def list(
        self,
        prefix: str = "",
        *,
        where: Mapping[str, str] | None = None,
        node: str | None = None,
        all_nodes: bool = False,
    ) -> pa.Table:
        """The sealed objects whose name begins with ``prefix``; with "" also those without name.

        Only those of this client's namespace, and in the memory of one node, or of all.

        Args:
            prefix: first characters of the name.
            where: only objects whose metadata has all these pairs.
            node: name of the node; None: this client's.
            all_nodes: those of all nodes that are not lost; ``nodes`` says which are.

        Returns:
            Columns name (string), id (fixed_size_binary[16]), kind (string), bytes (uint64: of the
            value), sealed_at (timestamp[ns, UTC]), creator_pid (uint32), metadata (map of
            string to string), pinned (bool), last_use (timestamp[ns, UTC]: the last get or the
            seal, by a clock of some milliseconds) and spilled (bool: in a file, until the next
            get; its metadata is not listed then).  With ``all_nodes`` also node (string; null
            where there is no cluster).

        Raises:
            NodeUnreachable: with ``all_nodes``, a living node whose objects cannot be listed from
                here; those of each other node can, with ``node``.
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
        """What happens to objects, as an iterator and an asyncio stream; see ``farrow.events``.

        Args:
            prefix: only objects whose name begins with it; "": all, those without name too.
            kinds: only these; None: all.  Gaps are always told.
            start: with what happens from now on, or with the oldest that the node remembers.
            timeout: the iteration ends when nothing happens for so many seconds; None: it goes on
                until it is closed.
            node: objects in the memory of this node; None: of this client's.  When the node is
                lost the stream ends with ``NodeLost``, after the events that it published.

        Raises:
            InvalidArgument: no name has such a prefix, or there is no such kind or node.
            NodeLost: the node is lost.
            NotGranted: clients of this client's node may not read there.
        """
    def huge_table(self, name: str, schema: Schema | None = None) -> HugeTable:
        """One table whose rows lie in the memory of many nodes; see ``farrow.huge``.

        It is made where there is none and a schema is given, else opened.

        Args:
            name: up to 200 bytes of UTF-8, with the name of the namespace.
            schema: a ``pyarrow.Schema``, or anything with ``__arrow_c_schema__``; None: the table
                must be there.

        Raises:
            NotFound: it is not there, and no schema was given.
            InvalidArgument: it has another schema (the first difference is named), or an object
                of this name is no huge table.
            FarrowError: a node is lost that the table may be on, which is named.
        """
    def stats(self, *, node: str | None = None) -> dict[str, Any]:
        """Counters of the node, or of another one, and of this client there; sizes in bytes.

        At least capacity, used, free, objects, holds and clients, and the fabric's counters.
        """
    def memory_pool(
        self,
        *,
        strict: bool = False,
        node: str | None = None,
        expect: int | Sequence[int] | None = None,
    ) -> pa.MemoryPool:
        """A pool whose memory lies in the region: what is built with it, ``put`` does not copy.

        With ``node`` in the region of that node: what is built with it, ``put`` with the same
        ``node`` does not copy.

        The pool takes memory that is free.  No object is evicted or spilled for it, since nobody
        knows yet whether anything comes of what it builds.  When the region is full, buffers lie
        in ordinary memory, since parts of Arrow (its CSV reader) abort the process when a pool
        fails; a later ``put`` copies them, and makes room for all of them or raises.  With
        ``strict`` an allocation raises ``pyarrow.ArrowMemoryError`` instead.

        With ``expect`` it is a pool of its own, which has room for so many bytes of buffers, or for
        buffers of these sizes, from the start: objects that nobody uses make room for it, and none
        of them goes if that would not be enough.  What is left of it goes back when the pool is
        collected.

        Raises:
            OutOfMemory: there is no room for ``expect`` bytes.
        """
    def _overview(self, cells: int) -> dict[str, Any]: ...
    def _offset(self, address: int, size: int) -> int | None: ...
    def locate(self, obj: Any) -> builtins.list[BufferLocation]:
        """Where each buffer of a pyarrow value, numpy array or bytes-like lies.

        The region is that of this client's node: ask ``client.at(node)`` for what lies elsewhere.
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
    """Make the authority of a cluster: ``ca.pem``, and ``ca.key`` for its owner only.

    Raises:
        FileExistsError: one of them is there.
        InvalidArgument: no authority is good for so many days.
    """

def certs_issue(
    folder: str | PathLike[str], name: str, hosts: Sequence[str], days: int
) -> tuple[str, str]:
    """Certify a node by the authority in a folder.

    Args:
        folder: with ca.pem and ca.key.
        name: of the node.
        hosts: addresses and DNS names at which it may be called without its name.
        days: for which it is good.

    Returns:
        The files: its certificate (NAME.pem), and its key (NAME.key, for its owner only).

    Raises:
        FileExistsError: one of them is there.
        InvalidArgument: the name, a host or the days cannot be.
        FarrowError: the authority is damaged, or not made by ``certs_init``.
    """

def leftovers(dirs: Sequence[str | PathLike[str]], *, remove: bool = False) -> list[dict[str, Any]]:
    """What nodes left behind that ended, in ``dirs`` and in the usual places.

    Each entry has ``kind`` (``"region"``, ``"mount"``, ``"socket"`` or ``"marks"``), ``path`` and
    ``bytes``; ``error`` says why it could not be removed, where that was asked.  What a process
    serves, opens or maps is never among them.
    """

def survey() -> dict[str, Any]:
    """What this machine offers: fabrics, huge pages, cache-line operations, limits."""

@final
class CopyBuffers:
    """Two private buffers of ``nbytes``, to measure the best copy of this machine.

    Raises:
        InvalidArgument: 0 bytes.
    """

    def __new__(cls, nbytes: int) -> CopyBuffers: ...
    def copy(self) -> float:
        """Copy one to the other with all cores and past the caches; the seconds that it took."""

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
    """The table that such messages describe, over the objects ``refs`` that they point into.

    Raises:
        InvalidDescriptor: a message does not hold together, or points elsewhere.
    """

@final
class GraphEngine:
    """The graph of a transaction stream and its features; see ``farrow.graph``, which checks what
    it is given.  Matrices are C-ordered or not, float64, ``[edge id, source, target, timestamp,
    ...]``; ``ends`` are the same four as int64.  ValueError for a setting or row that makes no
    sense, MemoryError for more rows than a graph holds; nothing has changed then.
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
        """Columns that are added to a row."""
    def start(self, matrix: npt.NDArray[np.float64]) -> None:
        """Forget everything and add rows as they come."""
    def learn(self, matrix: npt.NDArray[np.float64]) -> None:
        """Add rows."""
    def transform(self, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add rows; the rows with their features behind them."""
    def patterns(
        self, matrix: npt.NDArray[np.float64], most: int
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """As ``transform``, with the patterns that were completed."""
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
        """Add rows whose features come later, by ``transform_ahead``."""
    def transform_ahead(self, rows: int) -> npt.NDArray[np.float64]:
        """Features of the next rows that were learned ahead; as many as there are, at most."""
    def drop_ahead(self) -> None:
        """Let the rows that still wait stay without features."""
    def transform_columns(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
    ) -> npt.NDArray[np.float64]:
        """Add rows; their features alone."""
    def patterns_columns(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
        most: int,
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """As ``transform_columns``, with the patterns that were completed."""
    def preview(
        self, matrix: npt.NDArray[np.float64], most: int | None
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """The rows with the features that they would get now, and patterns unless ``most`` is None;
        the graph stays as it is."""
    def preview_columns(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
        most: int | None,
    ) -> tuple[npt.NDArray[np.float64], _GraphPatterns]:
        """As ``preview``; the features alone."""
    def knows(self, accounts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the graph knows each account."""
    def state(self) -> dict[str, Any]:
        """What the graph holds, as columns."""
    def restore(self, state: dict[str, Any]) -> None:
        """Become what ``state`` gave."""
    def stats(self) -> dict[str, Any]:
        """What the graph holds and has cost; see ``farrow.graph.GraphFeatures.stats``."""
    def freeze(self) -> GraphFrozen | None:
        """A copy of the oldest full span that has no segment, if there is one."""
    def attach(self, segment: GraphSegment) -> None:
        """Put a segment in the place of the edges that it was made from."""
    def adopt(
        self,
        accounts: npt.NDArray[np.int64],
        segments: Sequence[GraphSegment],
        late: dict[str, Any],
        next: int,
    ) -> None:
        """Fill an empty graph with what ``accounts`` and ``stragglers`` gave, and segments; the
        rows behind them are numbered from ``next`` on."""
    def split(
        self, matrix: npt.NDArray[np.float64]
    ) -> tuple[builtins.list[npt.NDArray[np.int64]], builtins.list[npt.NDArray[np.float64]]]:
        """A matrix as ``transform_columns`` takes its rows."""
    def accounts(self, start: int, /) -> npt.NDArray[np.int64]:
        """The accounts whose small numbers are ``start`` and above."""
    def edges_of(
        self, account: int, list: int, start: int, end: int, /
    ) -> builtins.list[npt.NDArray[np.int64]]:
        """Edges of an account between two times: the accounts at the other ends, and the times.
        ``list`` is 0 for edges out, 1 for edges in, 2 for self-loops."""
    def stragglers(self) -> dict[str, Any]:
        """The edges that came late and that segments have no place for, as columns."""
    def begin(self) -> None:
        """Have the next call's rows be provisional, until ``keep`` or ``undo``."""
    def keep(self) -> None:
        """Keep provisional rows; what they made too old goes."""
    def undo(self) -> None:
        """Take provisional rows back: the graph is as it was before them."""
    def next_number(self) -> int:
        """Number of arrival that the next row will have."""
    def expired(self) -> builtins.list[dict[str, int]]:
        """Segments of which nothing is left in the window, since the last question."""
    def transform_share(
        self,
        ends: Sequence[npt.NDArray[np.int64]],
        measured: Sequence[npt.NDArray[np.float64]],
        share: tuple[int, int],
    ) -> npt.NDArray[np.float64]:
        """As ``transform_columns``, one of several shares of the work; they add up to it."""

@final
class GraphFrozen:
    """A full span of a graph's edges, copied out of it."""

    def about(self) -> dict[str, int]: ...
    def plan(self) -> GraphPlan:
        """Measure its lists; once."""

@final
class GraphPlan:
    """A span of a graph's edges that will be a segment (``docs/formats/segment.md``)."""

    def about(self) -> dict[str, int]: ...
    def sizes(
        self,
    ) -> tuple[int, builtins.list[int], builtins.list[int], int, int, builtins.list[int]]:
        """Lengths of index, starts, entries, times, ids and values."""
    def fill(
        self,
        index: npt.NDArray[np.uint64],
        starts: Sequence[npt.NDArray[np.int32]],
        entries: Sequence[npt.NDArray[np.uint64]],
        times: npt.NDArray[np.uint64],
        ids: npt.NDArray[np.int64],
        values: Sequence[npt.NDArray[np.float64]],
    ) -> None:
        """Write the segment into arrays of these lengths."""

@final
class GraphSegment:
    """A segment over pyarrow buffers, which it keeps and which must not change."""

    def __new__(
        cls,
        of: dict[str, int],
        index: pa.Buffer,
        starts: Sequence[pa.Buffer],
        entries: Sequence[pa.Buffer],
        times: pa.Buffer,
        ids: pa.Buffer,
        values: Sequence[pa.Buffer],
    ) -> GraphSegment: ...
    def about(self) -> dict[str, int]: ...
    @property
    def nbytes(self) -> int: ...

@final
class HugeTable:
    """A table whose chunks lie in the memory of many nodes; made by ``Client.huge_table``.

    See ``farrow.huge``.  Safe to use from many threads.  What a client appends lies in the memory
    of its own node, if it says nothing else.  Every method but ``drop`` raises NotFound when the
    table was dropped, and an error that names the node when one that has rows of it is lost.
    """

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def schema(self) -> pa.Schema:
        """The schema that it was made with."""
    @property
    def rows(self) -> int:
        """The row behind the last one that is there."""
    @property
    def version(self) -> int:
        """How often something was appended; what a version has never changes."""
    def append(
        self,
        data: Any,
        position: int | None = None,
        *,
        node: str | None = None,
        timeout: float = 10.0,
    ) -> Partition:
        """Add rows, in one piece.

        Args:
            data: a pyarrow RecordBatch or Table, or anything that ``Client.put`` takes as such.
                Buffers in the memory pool of that node stay in place, others are copied once.
            position: the row at which they begin; None: behind the last one.
            node: in whose memory they are to lie; None: that of the client.
            timeout: seconds that the node may take to find room, and that others who append at the
                same moment may keep it waiting.

        Returns:
            Where they are now.

        Raises:
            RowsTaken: some of these rows are there already.
            InvalidArgument: no rows, another schema (the first difference is named), more rows
                than Arrow counts (2^63 - 1), or no such node.
            Timeout: others were faster, again and again.
            OutOfMemory, QuotaExceeded, ...: as ``Client.put``.
        """
    def table(self, version: int | None = None) -> pa.Table:
        """All rows in their order, zero-copy and read-only; each chunk lies where it was put.

        Args:
            version: how the table was then; None: as it is now.

        Raises:
            RowsMissing: not all rows before the last one are there; the first gap is named.
            InvalidArgument: there is no such version yet.
            InvalidDescriptor: a chunk is not what it says.
        """
    def partitions(self, version: int | None = None) -> builtins.list[Partition]:
        """Which rows lie where, by row, so that work can go to the data."""
    def wait(
        self, *, rows: int | None = None, version: int | None = None, timeout: float = 10.0
    ) -> int:
        """Wait until the first ``rows`` rows are there, or a version; for ``timeout`` seconds.

        Returns:
            The version that the table has then.

        Raises:
            Timeout: with what is there.
        """
    def drop(self) -> None:
        """Delete the table on all nodes.  Tables that were made of it stay readable.

        Raises:
            NotFound: it was dropped before.
        """

@final
class EventStream:
    """What is below a ``farrow.events.Subscription``.

    Events are tuples of kind, id, name, bytes of the value, and nanoseconds since 1970; a gap is
    one of "gap" and the number of events missed.
    """

    def take(self) -> tuple[Any, ...] | None:
        """The next event that is there already."""
    def next(self, timeout: float | None = None) -> tuple[Any, ...] | None:
        """The next event; None after ``timeout`` seconds, or when the stream was closed."""
    def arm(self) -> tuple[int | None, float]:
        """What to wait for before the next ``take``: a file descriptor, or else seconds."""
    def close(self) -> None:
        """End it, from any thread."""

@final
class DissociatedMessages:
    """Encapsulated metadata messages, and where the region they point into lies.

    What they point into stays there as long as this does.
    """

    @property
    def schema(self) -> bytes:
        """The schema message."""
    @property
    def batches(self) -> list[tuple[list[bytes], bytes]]:
        """For each batch the dictionary messages to read before it, and its own."""
    @property
    def refs(self) -> list[ObjectRef]:
        """What the messages point into: the object, and a second one with what had to be copied,
        if anything had; that one is the caller's to delete."""
    @property
    def base(self) -> int:
        """Address of the region in this process; the messages count from here."""
    @property
    def length(self) -> int:
        """Bytes of the region."""

@final
class LabArena:
    """Memory to measure in, all its pages there.  Not safe to share with whoever uses the memory:
    jobs write to it."""

    @staticmethod
    def private(nbytes: int, *, huge: bool) -> LabArena:
        """Memory of this process alone, in huge pages if asked for and to be had.

        Raises:
            MemoryError: with the bytes available; nothing was allocated.
        """
    @staticmethod
    def region(nbytes: int, directory: str | PathLike[str]) -> LabArena:
        """A region in a directory on a tmpfs, as who writes it maps it; its files are gone at
        once.

        Raises:
            MemoryError: there is no room, with the numbers.
            FarrowError: the place cannot hold a region.
        """
    @staticmethod
    def over(buffer: object) -> LabArena:
        """The memory behind a writable buffer, which is kept.

        Raises:
            BufferError: it is not writable, or empty.
        """
    @property
    def nbytes(self) -> int: ...
    @property
    def huge_bytes(self) -> int | None:
        """Bytes of it that lie in huge pages now; None if the kernel does not say."""
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
        """Time something, without the lock of the interpreter.

        Args:
            work: "publish", "publish again" (and store to each line), "refresh", "write" (and
                publish), "copy", "load" or "store".
            method: one of ``lab_methods()[work]``; loads and stores have none.
            state: of the lines before: "uncached", "cached" or "dirty".
            nbytes: of a range.
            batch: ranges between two looks at the clock.
            samples: how often.
            threads: each on ranges of its own; the slowest counts.
            source: bytes that are written over and over to fill a range (default: ``nbytes``).
            width: bytes of an element that is loaded or stored: 1, 2, 4 or 8.
            stride: bytes from one element to the next.

        Returns:
            Nanoseconds of a range, one number a sample.

        Raises:
            InvalidArgument: with the number that is wrong, or the instruction this CPU lacks.
        """

def lab_methods() -> dict[str, Any]:
    """What this CPU can do, by kind of work, with "line_bytes", "clock_ns" of a sample, and
    "publish_again_bytes_max": up to there the next store counts where a way to publish is chosen.
    """

def lab_fit(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """The model "fixed + line * lines" of points (lines, nanoseconds).

    Returns:
        Nanoseconds of a call, nanoseconds a line, and the root mean square of relative errors;
        None for fewer than two different numbers of lines.
    """

def lab_profile(*, measure: bool = False, keep: bool = False) -> dict[str, Any]:
    """What Farrow publishes, refreshes and writes by on this machine.

    Args:
        measure: measure it anew, in a fifth of a second at most; else that of this process.
        keep: with `measure`, write it to the file of this user in place of what that says.

    Returns:
        "origin" ("file", "measured", "default"), "measured_seconds", "machine", "path", "kept",
        "copy" and "copy_from_bytes" (stores past the cache on coherent memory, and from which
        length on), and "steps": for each size in "bytes" the ways to "publish", "refresh" and
        "write", with their nanoseconds; these are None where there was one way only.
    """

def panic_on_purpose(text: str) -> None:
    """Panic: for the test that a panic is an ``InternalError``."""
