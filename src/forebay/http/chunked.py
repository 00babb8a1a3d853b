"""The chunked coding (RFC 9112, 7.1), strictly read, in one place for requests and answers.

Own code rather than llhttp's, because the caller must know exactly where a body ends (httptools reads on into
the next message), and because one whole chunk per read is the shape of almost every streamed token: it is
recognised and unwrapped without a loop.

Owns the bytes of one unfinished size line or trailer, at most `LINE_BYTES`. Never keeps decoded bytes.
Extensions and trailers are read and dropped.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LAST_CHUNK", "BadChunk", "ChunkedDecoder", "encode_chunk"]

LAST_CHUNK: Final = b"0\r\n\r\n"
LINE_BYTES: Final = 4096
"""Longest size line with its extensions, and longest trailer line."""
OVERHEAD_BYTES: Final = 65536
"""Most bytes of extensions and trailers in one body: they are work for us and worth nothing to anybody."""
_PLAIN_LINE_BYTES: Final = 16
_SIZE_DIGITS: Final = 12
_FEW_DIGITS: Final = 6
_LEAST_BYTES: Final = _FEW_DIGITS + 2
_CR: Final = 13
_LF: Final = 10

_SIZE: Final = 0
_DATA: Final = 1
_DATA_END: Final = 2
_TRAILER: Final = 3


class BadChunk(Exception):
    """The bytes are not in the chunked coding; nothing after them can be trusted."""


def encode_chunk(data: bytes) -> bytes:
    """One chunk. `data` must not be empty: an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ChunkedDecoder:
    """Decodes one body, piece by piece."""

    __slots__ = ("_left", "_line", "_overhead_bytes", "_state", "done", "one_chunk", "rest")

    def __init__(self) -> None:
        self.done = False
        """True once the last chunk and its trailers were read."""
        self.rest = b""
        """When done: what followed the body in the same piece."""
        self.one_chunk = False
        """True if the last piece was exactly one chunk without extensions: it may be sent on as it is."""
        self._state = _SIZE
        self._left = 0
        self._line = b""
        self._overhead_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Takes a piece as it came from the socket; returns the body bytes in it, joined.

        Raises:
            BadChunk: the coding is broken.
        """
        if self._state == _SIZE and not self._line:
            begin = _begin_of_one_chunk(data)
            if begin:
                self.one_chunk = True
                return data[begin:-2]
        self.one_chunk = False
        return self._feed_any(data)

    def _feed_any(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        position, length = 0, len(data)
        while position < length and not self.done:
            if self._state == _DATA:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _DATA_END
                continue
            line, position = self._take_line(data, position)
            if line is None:
                break
            if self._state == _SIZE:
                self._begin_chunk(line)
            elif self._state == _DATA_END:
                if line:
                    raise BadChunk("a chunk is longer than its size says")
                self._state = _SIZE
            elif line:
                self._count_overhead(len(line))
            else:
                self.done = True
                self.rest = data[position:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, data: bytes, position: int) -> tuple[bytes | None, int]:
        """The next line without its CRLF and the position after it; None if it is not complete yet."""
        end = data.find(b"\n", position)
        if end < 0:
            held = self._line = self._line + data[position : position + LINE_BYTES + 2]
            self._check_unfinished(held)
            return None, len(data)
        line = data[position:end]
        if self._line:
            line = self._line + line
            self._line = b""
        if not line.endswith(b"\r"):
            raise BadChunk("a line of the chunked coding does not end with CRLF")
        line = line[:-1]
        if line.find(b"\r") >= 0 or line.find(b"\0") >= 0 or len(line) > LINE_BYTES:
            raise BadChunk("a line of the chunked coding holds CR or NUL, or is too long")
        return line, end + 1

    def _check_unfinished(self, held: bytes) -> None:
        """Refuses at once what no further byte can mend."""
        if len(held) > LINE_BYTES + 1:
            raise BadChunk("a line of the chunked coding is too long")
        if self._state == _DATA_END and held != b"\r":
            raise BadChunk("a chunk is longer than its size says")

    def _begin_chunk(self, line: bytes) -> None:
        digits, mark, _extension = line.partition(b";")
        size = _size_of(digits.rstrip(b" \t") if mark else digits)
        if size is None:
            raise BadChunk("a chunk size is not a hexadecimal number")
        if mark or len(line) > _PLAIN_LINE_BYTES:
            self._count_overhead(len(line))
        if size:
            self._left = size
            self._state = _DATA
        else:
            self._state = _TRAILER

    def _count_overhead(self, line_bytes: int) -> None:
        self._overhead_bytes += line_bytes
        if self._overhead_bytes > OVERHEAD_BYTES:
            raise BadChunk("too many bytes of chunk extensions or trailers")


def _size_of(digits: bytes) -> int | None:
    """The value of a chunk size; None if it is not 1 to 12 hexadecimal digits and nothing else."""
    # int() also takes "0x", signs, blanks and underscores: isalnum() and the search for x shut those out.
    if len(digits) > _SIZE_DIGITS or not digits.isalnum() or digits.find(b"x") >= 0 or digits.find(b"X") >= 0:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def _begin_of_one_chunk(data: bytes) -> int:
    """Where the data begin if this is one chunk, with nothing beside its size and nothing after it; otherwise 0.

    Byte by byte, since compiled that takes less than any call: this is the shape of almost every streamed token.
    """
    length = len(data)
    if length < _LEAST_BYTES or data[length - 2] != _CR or data[length - 1] != _LF:
        return 0
    size, at = 0, 0
    while at < _FEW_DIGITS:
        byte = data[at]
        if 48 <= byte <= 57:  # 0 to 9
            size = 16 * size + byte - 48
        elif 97 <= byte <= 102:  # a to f
            size = 16 * size + byte - 87
        elif 65 <= byte <= 70:  # A to F
            size = 16 * size + byte - 55
        else:
            break
        at += 1
    if size and data[at] == _CR and data[at + 1] == _LF and size + at + 4 == length:
        return at + 2
    return 0
