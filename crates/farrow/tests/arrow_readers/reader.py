"""Reads Arrow tables in place in one node's memory, with pyarrow alone, and sends them back.

A request is one line of JSON: {"map": path} maps a node's memory; {"schema": hex of an IPC stream
without batches, "batches": [{"rows", "columns"}]} asks for a table in it. A column is {"length",
"offset", "null_count", "buffers": [[offset in memory, bytes] or null], "children"}. An answer is
one byte (0: good, 1: an error), 8 bytes of length (little endian), and the table as an IPC stream
or the error as text.
"""

import json
import mmap
import struct
import sys

import pyarrow as pa


def map_memory(path):
    """The bytes of a file, as one read-only buffer."""
    with open(path, "rb") as file:
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def child_types(data_type):
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return [data_type.value_type]
    if pa.types.is_struct(data_type):
        return [field.type for field in data_type]
    return []


def array_at(memory, data_type, node):
    """The array described by a node of the request, over memory."""
    buffers = [None if place is None else memory.slice(*place) for place in node["buffers"]]
    length, nulls, offset = node["length"], node["null_count"], node["offset"]
    if pa.types.is_dictionary(data_type):
        values = array_at(memory, data_type.value_type, node["children"][0])
        return pa.DictionaryArray.from_buffers(data_type, length, buffers, values, nulls, offset)
    pairs = zip(child_types(data_type), node["children"], strict=True)
    children = [array_at(memory, child, below) for child, below in pairs]
    return pa.Array.from_buffers(data_type, length, buffers, nulls, offset, children or None)


def read_table(memory, request):
    """The table of a request, as an IPC stream."""
    schema = pa.ipc.open_stream(bytes.fromhex(request["schema"])).schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in request["batches"]:
            columns = zip(schema.types, batch["columns"], strict=True)
            arrays = [array_at(memory, data_type, node) for data_type, node in columns]
            record = pa.RecordBatch.from_arrays(arrays, schema=schema)
            record.validate(full=True)
            writer.write_batch(record)
    return sink.getvalue().to_pybytes()


def main():
    memory = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "map" in request:
                memory, answer = map_memory(request["map"]), b""
            else:
                answer = read_table(memory, request)
            status = 0
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            status, answer = 1, str(error).encode()
        sys.stdout.buffer.write(struct.pack("<BQ", status, len(answer)) + answer)
        sys.stdout.buffer.flush()


main()
