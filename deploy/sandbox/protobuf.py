"""As much of Kubernetes' protobuf as `kubectl auth can-i` sends. Of the answer, it reads JSON as well."""

from __future__ import annotations

from collections.abc import Iterator

from . import errors
from .resources import Obj

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_VARINT, _BYTES = 0, 2
_ATTRIBUTES = {1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"}


def access_review(raw: bytes) -> Obj:
    """A SelfSubjectAccessReview: an envelope whose field 2 is the object, whose field 2 is `spec`, and so on."""
    try:
        if not raw.startswith(_MAGIC):
            raise ValueError("it does not begin with k8s")
        spec = dict(_fields(dict(_fields(dict(_fields(raw[len(_MAGIC) :]))[2]))[2]))
        asked = {_ATTRIBUTES[number]: text.decode() for number, text in _fields(spec[1]) if number in _ATTRIBUTES}
    except (KeyError, IndexError, ValueError) as error:
        raise errors.bad_request(f"the object provided is unrecognized (must be of type protobuf): {error}") from error
    return {"spec": {"resourceAttributes": {name: text for name, text in asked.items() if text}}}


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields that have a length: texts and messages. Numbers are passed over."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        size, at = _varint(message, at)
        if key & 7 == _VARINT:
            continue
        if key & 7 != _BYTES or at + size > len(message):
            raise ValueError(f"field {key >> 3}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Seven bits of the number in each byte, the lowest first; the eighth says that more follow. And where it ends."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
