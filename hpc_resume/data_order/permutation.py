"""A shuffle that is computed for one index at a time, and so fits data sets of any size."""

from __future__ import annotations

import hashlib
import math

Key = str | tuple[int | str, ...]

# A round adds one of only sqrt(size) values, so a small domain needs more rounds to be mixed: with 8 rounds the
# orders of 5 samples are not equally likely, with 16 they are.
_SMALL_SIZE = 2**16
_ROUND_PAIRS_SMALL = 8
_ROUND_PAIRS = 4
_MASK = 2**64 - 1


class Permutation:
    """A bijection of `range(size)` that a key chooses; the same key and size always give the same one.

    The method is the generalised Feistel cipher of Black and Rogaway ("Ciphers with Arbitrary Finite Domains",
    CT-RSA 2002). An index is a pair of digits in the radices a and b, with a * b equal to `size` or just above
    it. A round adds a keyed function of one digit to the other, which can always be undone, whatever the
    function is. A result that is not below `size` goes through the rounds again ("cycle walking"; at most about
    once in sqrt(size) calls).

    The key is hashed, with the size, into the round keys. So keys that differ by 1 give unrelated orders, and
    nothing can be reached by adding to a seed. This is a good shuffle, not a cipher: it keeps no secrets.
    """

    __slots__ = ("_high_radix", "_low_radix", "_round_keys", "_size")

    def __init__(self, size: int, key: Key) -> None:
        if size < 0:
            raise ValueError(f"the size of a permutation is {size}; it must be 0 or more")
        self._size = size
        self._high_radix = math.isqrt(size - 1) + 1 if size else 0
        self._low_radix = -(-size // self._high_radix) if size else 0
        self._round_keys = _round_keys(size, key)

    def __call__(self, index: int) -> int:
        """Return where `index` goes; IndexError unless it is in `range(size)`."""
        if not 0 <= index < self._size:
            raise IndexError(f"index {index} is outside a permutation of {self._size}")
        high_radix, low_radix = self._high_radix, self._low_radix
        while True:
            high, low = divmod(index, low_radix)
            for high_key, low_key in self._round_keys:
                high = (high + _mix(low ^ high_key)) % high_radix
                low = (low + _mix(high ^ low_key)) % low_radix
            index = high * low_radix + low
            if index < self._size:
                return index


def _mix(word: int) -> int:
    """Spread every bit of a 64-bit word over all of them.

    The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014) with the constants of Stafford's variant 13, as in Vigna's public-domain splitmix64.c.
    """
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def _round_keys(size: int, key: Key) -> tuple[tuple[int, int], ...]:
    """Derive two 64-bit words for each pair of rounds."""
    pairs = _ROUND_PAIRS_SMALL if size < _SMALL_SIZE else _ROUND_PAIRS
    parts = (key,) if isinstance(key, str) else key
    encoded = _encode((size, *parts))
    digests = (hashlib.sha256(_encode((number,)) + encoded).digest() for number in range(pairs))
    return tuple((int.from_bytes(d[:8], "big"), int.from_bytes(d[8:16], "big")) for d in digests)


def _encode(parts: tuple[int | str, ...]) -> bytes:
    """Write parts so that no two different lists look the same: kind, length, text."""
    texts = [f"s{part}".encode() if isinstance(part, str) else f"i{part:d}".encode() for part in parts]
    return b"".join(b"%d:%b," % (len(text), text) for text in texts)
