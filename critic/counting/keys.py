"""Which of millions of keys are there, in memory."""

from collections.abc import Hashable
from hashlib import blake2b

import msgspec

_NAME = 16
"""Bytes of the hash that a key is known by: of ten million keys two are taken for one with a probability of 1e-25."""

_FULL = 32
"""Keys of a bucket, on average: fewer take more memory, more take longer to find."""


class KeySet:
    """Keys (texts, and tuples of texts, numbers and None) in about 24 bytes each, where a set takes 110, and a number
    for each in `numbered` bytes more (4: below 2^32). Only their hashes are kept.

    A hash table that grows by one bucket at a time, so that it is never there twice: linear hashing (Litwin 1980).
    """

    def __init__(self, *, numbered: int = 0) -> None:
        self._size, self._count = _NAME + numbered, 0
        # Half of the buckets at least are told apart by the hash's bits below `_bit`, those split since by one more.
        self._bit, self._buckets = 1, [bytearray()]

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Hashable) -> bool:
        return self._found(key)[2] >= 0

    def get(self, key: Hashable) -> int | None:
        """The number of a key, None of one that is not there."""
        bucket, _, place = self._found(key)
        return None if place < 0 else int.from_bytes(bucket[place + _NAME : place + self._size], "little")

    def add(self, key: Hashable, number: int = 0) -> bool:
        """Whether the key was not there; one that was keeps its number."""
        bucket, name, place = self._found(key)
        if place >= 0:
            return False
        bucket += name
        bucket += number.to_bytes(self._size - _NAME, "little")
        self._count += 1
        if self._count > _FULL * len(self._buckets):
            self._split()
        return True

    def _found(self, key: Hashable) -> tuple[bytearray, bytes, int]:
        """The bucket of a key, its hash, and where in the bucket that stands; -1 where it does not."""
        name = blake2b(msgspec.json.encode(key), digest_size=_NAME).digest()
        bits = int.from_bytes(name, "little")
        number = bits & (2 * self._bit - 1)
        bucket = self._buckets[number if number < len(self._buckets) else number & (self._bit - 1)]
        place = bucket.find(name)
        while place % self._size and place > 0:  # across two neighbours
            place = bucket.find(name, place + 1)
        return bucket, name, place

    def _split(self) -> None:
        """Move to a new bucket, of the oldest not yet split, what the next bit of the hash says."""
        if len(self._buckets) == 2 * self._bit:
            self._bit *= 2
        number = len(self._buckets) - self._bit
        stays, goes = bytearray(), bytearray()
        for start in range(0, len(old := self._buckets[number]), self._size):
            one = old[start : start + self._size]
            (goes if int.from_bytes(one[:_NAME], "little") & self._bit else stays).extend(one)
        self._buckets[number] = stays
        self._buckets.append(goes)
