"""The CBOR that authenticators send: measured before it is decoded (CTAP 2.2 §8, canonical form).

Decoders of CBOR take tags, too, and what these stand for need not be in proportion to the document. Authenticators send
none, and nest at most four levels deep.
"""

DEPTH_MAX = 4

_FOLLOWING = {24: 1, 25: 2, 26: 4, 27: 8}
"""How many bytes have the argument of an item's head, by its low five bits (RFC 8949 §3)."""

_BYTES, _TEXT, _ARRAY, _MAP, _TAG = 2, 3, 4, 5, 6


def measure_cbor(data: bytes, start: int = 0, depth: int = 0) -> int:
    """Return the end of the item of CBOR that begins at `start`.

    Raises:
        ValueError: there is none, or it has a tag, an indefinite length or more than `DEPTH_MAX` levels.
    """
    if start >= len(data):
        raise ValueError("the CBOR is incomplete")
    major, low = data[start] >> 5, data[start] & 31
    following = _FOLLOWING.get(low, 0)
    if low > 27 or major == _TAG:
        raise ValueError("the CBOR has a tag, or an item of indefinite length")
    end = start + 1 + following
    argument = int.from_bytes(data[start + 1 : end], "big") if following else low
    if major in {_ARRAY, _MAP}:
        if depth == DEPTH_MAX:
            raise ValueError(f"the CBOR has more than {DEPTH_MAX} levels")
        for _ in range(argument if major == _ARRAY else 2 * argument):
            end = measure_cbor(data, end, depth + 1)
    elif major in {_BYTES, _TEXT}:
        end += argument
    if end > len(data):
        raise ValueError("the CBOR is incomplete")
    return end
