"""How a struct becomes the body of a journal row: JSON that a person can read, unless JSON would lose something."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes one type (a struct, or a union of tagged ones).

    JSON has no NaN and no infinity: they would come back as null, and a loss that is NaN is exactly what a journal has
    to remember. A body that holds one is written as MessagePack; SQLite keeps text and blobs apart, so reading knows.
    """

    def __init__(self, type_: Any) -> None:
        self._encode_json = msgspec.json.Encoder().encode
        self._decode_json = msgspec.json.Decoder[T](type_).decode
        self._encode_msgpack = msgspec.msgpack.Encoder().encode
        self._decode_msgpack = msgspec.msgpack.Decoder[T](type_).decode

    def encode(self, value: T) -> str | bytes:
        """The body of a row. Raises msgspec.MsgspecError or UnicodeEncodeError where the value cannot be written."""
        body = self._encode_json(value)
        # Nearly always null means None; only then is it worth a second look.
        if b"null" in body and not self._survives(body, value):
            return self._encode_msgpack(value)
        return body.decode()

    def decode(self, body: str | bytes) -> T:
        """The value of a body. Raises msgspec.MsgspecError where it is none."""
        return self._decode_msgpack(body) if isinstance(body, bytes) else self._decode_json(body)

    def _survives(self, body: bytes, value: T) -> bool:
        try:
            return self._decode_json(body) == value
        except msgspec.ValidationError:
            return False
