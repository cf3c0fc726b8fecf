"""Read object headers: the messages of an object, by kind."""

from __future__ import annotations

import struct

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.parser.source import FileBytes, NotUnderstoodError, check_sum

_HEADER = struct.Struct("<BxHII4x")
_MESSAGE = struct.Struct("<HHB3x")
_MESSAGE2 = struct.Struct("<BHB")
_PAIR = struct.Struct("<QQ")

SPACE, LINK_INFO, TYPE, OLD_FILL, FILL, LINK, ELSEWHERE = 1, 2, 3, 4, 5, 6, 7
LAYOUT, FILTERS, ATTRIBUTE, CONTINUED, SYMBOLS, ATTRIBUTE_INFO = 8, 11, 12, 16, 17, 21
_LAST_KIND = 23
_ONCE = frozenset({SPACE, TYPE, LAYOUT, FILTERS, SYMBOLS, LINK_INFO, ATTRIBUTE_INFO})

#: messages of an object header by kind
Messages = dict[int, list[bytes]]


def read_header(source: FileBytes, address: int) -> Messages:
    """Read an object header of version 1 or 2."""
    start = source.take(address, 16, "object header")
    if start[:4] == b"OHDR":
        blocks = _blocks2(source, address, start)
        head = _MESSAGE2
    else:
        version, _, _, size = _HEADER.unpack(start)
        if version != 1:
            raise CorruptDatasetError(f"no object header at address {address}")
        blocks = [source.take(address + 16, size, "object header")]
        head = _MESSAGE
    extra = 0
    if head is _MESSAGE2 and start[5] & 4:
        extra = 2  # each message stores its creation order
    length = head.size
    messages: Messages = {}
    room = source.size
    for block in blocks:  # the loop appends continuation blocks
        at, end = 0, len(block)
        while at + length + extra <= end:
            kind, size, flags = head.unpack_from(block, at)
            at += length + extra
            if at + size > end:
                raise CorruptDatasetError(f"a message of {size} bytes extends past its header")
            if kind:
                message = block[at : at + size]
                if kind == CONTINUED:
                    place, more = _PAIR.unpack_from(message)
                    room -= more
                    if room < 0 or not more:
                        raise CorruptDatasetError("the blocks of an object header form a cycle")
                    if head is _MESSAGE:
                        blocks.append(source.take(place, more, "object header"))
                    else:
                        blocks.append(_continued2(source, place, more))
                elif kind > _LAST_KIND:
                    raise CorruptDatasetError(f"a message of unknown kind {kind}")
                elif flags & 2:
                    raise NotUnderstoodError("shared messages")
                elif kind in messages:
                    if kind in _ONCE:
                        raise CorruptDatasetError(f"two messages of kind {kind}")
                    messages[kind].append(message)
                else:
                    messages[kind] = [message]
            at += size
    return messages


def _blocks2(source: FileBytes, address: int, start: bytes) -> list[bytes]:
    version, flags = start[4:6]
    if version != 2:
        raise CorruptDatasetError(f"an object header of unknown version {version}")
    at = 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(source.take(address + at, width, "object header"), "little")
    at += width
    block = source.take(address, at + size + 4, "object header")
    check_sum(block, "an object header")
    return [block[at:-4]]


def _continued2(source: FileBytes, place: int, size: int) -> bytes:
    block = source.take(place, size, "object header")
    check_sum(block, "an object header")
    if block[:4] != b"OCHK":
        raise CorruptDatasetError(f"no continued object header at address {place}")
    return block[4:-4]
