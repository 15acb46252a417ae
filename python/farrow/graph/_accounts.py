"""Number the accounts of a table: the code of an account is its rank by first appearance.

Called by ``data``.  Hashing ten million strings takes longer than parsing them; account numbers
of one short length (IBM's have nine digits) are packed into 64-bit integers first, exactly, and
those are hashed three times as fast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Codes", "encoded", "with_banks"]

_Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
# Codes of rows, int64, and the values by code.
Codes = tuple[_Ints, pa.Array]

# Nine characters of seven bits fit into 64; eight of them leave the top bit of each byte free.
_LENGTH_MAX = 9
_TOP_BITS = np.uint64(0x8080_8080_8080_8080)
# Bit i of a character goes to the top bit of byte i.
_SPREAD = np.array(
    [sum((letter >> bit & 1) << (8 * bit + 7) for bit in range(7)) for letter in range(128)],
    dtype=np.uint64,
)


def encoded(columns: list[pa.ChunkedArray]) -> Codes:
    """Codes of all rows of these columns, concatenated, with one common list of values.

    The columns hold strings, dictionary-encoded strings or integers, and no nulls.
    """
    if len({column.type for column in columns}) > 1:
        columns = [column.cast(pa.string()) for column in columns]
    chunks = [chunk for column in columns for chunk in column.chunks if len(chunk)]
    if not chunks:
        return np.zeros(0, dtype=np.int64), pa.array([], pa.string())
    words = _packed(chunks)
    if words is not None:
        keys = pa.array(words[0].view(np.int64)).dictionary_encode()
        return _codes(keys), _unpacked(keys.dictionary.to_numpy().view(np.uint64), words[1])
    whole = pa.chunked_array(chunks)
    if not pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_encode()
    whole = whole.unify_dictionaries()
    return np.concatenate([_codes(chunk) for chunk in whole.chunks]), whole.chunk(0).dictionary


def with_banks(accounts: Codes, banks: Codes) -> Codes:
    """Number accounts by number and bank; nearly all account numbers are of one bank.

    The values are texts ``bank:account``.
    """
    (account, names), (bank, bank_names) = accounts, banks
    home = np.zeros(len(names), dtype=np.int64)
    home[account[::-1]] = bank[::-1]  # the last write wins: the bank of the first row
    elsewhere = np.flatnonzero(home[account] != bank)
    bank_count = max(len(bank_names), 1)
    further, which = np.unique(
        account[elsewhere] * bank_count + bank[elsewhere], return_inverse=True
    )
    codes = account.copy()
    codes[elsewhere] = len(names) + which
    all_accounts = np.concatenate([np.arange(len(names)), further // bank_count])
    all_banks = np.concatenate([home, further % bank_count])
    texts = [
        values.take(pa.array(places)).cast(pa.string())
        for values, places in ((bank_names, all_banks), (names, all_accounts))
    ]
    return codes, pc.binary_join_element_wise(*texts, ":")


def _codes(array: pa.DictionaryArray) -> _Ints:
    codes: _Ints = array.indices.to_numpy().astype(np.int64)
    return codes


def _packed(chunks: list[pa.Array]) -> tuple[_Words, int] | None:
    """Strings as integers, and their length; None if they differ in length, are too long, or are
    not ASCII."""
    if not pa.types.is_string(chunks[0].type):
        return None
    length = len(chunks[0][0].as_buffer())
    if not 0 < length <= _LENGTH_MAX:
        return None
    words = np.empty(sum(len(chunk) for chunk in chunks), dtype=np.uint64)
    begin = 0
    for chunk in chunks:
        end = begin + len(chunk)
        if not _pack(chunk, length, words[begin:end]):
            return None
        begin = end
    return words, length


def _pack(chunk: pa.Array, length: int, words: _Words) -> bool:
    """Write one word for each string; False if a string cannot be packed."""
    _, offset_buffer, data_buffer = chunk.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)
    offsets = offsets[chunk.offset : chunk.offset + len(chunk) + 1]
    if not (np.diff(offsets) == length).all():
        return False
    data = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    letters = data.reshape(len(chunk), length)
    tail = min(length, 8)
    padded = np.zeros((len(chunk), 8), dtype=np.uint8)
    padded[:, :tail] = letters[:, length - tail :]
    words[:] = padded.view("<u8").ravel()
    if (words & _TOP_BITS).any() or (length == _LENGTH_MAX and (letters[:, 0] > 127).any()):
        return False
    if length == _LENGTH_MAX:
        words |= _SPREAD[letters[:, 0]]
    return True


def _unpacked(words: _Words, length: int) -> pa.StringArray:
    """The strings of packed words."""
    tail = min(length, 8)
    letters = np.empty((len(words), length), dtype=np.uint8)
    low = (words & ~_TOP_BITS).astype("<u8").view(np.uint8).reshape(len(words), 8)
    letters[:, length - tail :] = low[:, :tail]
    if length == _LENGTH_MAX:
        first = np.zeros(len(words), dtype=np.uint64)
        for bit in range(7):
            first |= (words >> np.uint64(8 * bit + 7) & np.uint64(1)) << np.uint64(bit)
        letters[:, 0] = first
    offsets = np.arange(len(words) + 1, dtype=np.int32) * length
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(offsets), pa.py_buffer(letters))
