"""Backups of named objects in a folder or a bucket, in open formats.

Tables and arrays are saved as Arrow IPC streams, numpy arrays and tensors as ``.npy`` files, bytes
as they are.  A manifest has name, kind, metadata and pin of each object, and size and SHA-256
checksum of each file (docs/formats/backup.md)::

    import farrow
    from farrow import backup

    client = farrow.connect()
    backup.create(client, "/backups/monday")            # or s3://bucket/monday
    backup.verify("/backups/monday")                    # needs no node
    backup.restore(client, "/backups/monday", ["trades"], existing="replace")

A backup replaces the earlier one in the same place when it is complete.  Until then, also after a
kill, the earlier one is whole.  Each object is saved as it was sealed.  Objects that exist during
the whole backup are in it.  Of a name that is replaced meanwhile, the backup has the old or the new
object; a name that is deleted meanwhile may be left out.  A huge table is saved as of one version.
"""

from __future__ import annotations

from farrow.backup._create import Created, create
from farrow.backup._manifest import Entry, Manifest
from farrow.backup._restore import IncompleteRestore, RestoreReport, restore, verify

__all__ = [
    "Created",
    "Entry",
    "IncompleteRestore",
    "Manifest",
    "RestoreReport",
    "create",
    "restore",
    "verify",
]
