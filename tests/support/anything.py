"""Hypothesis strategies for the structs of the model, made from their own field types."""

from __future__ import annotations

import builtins
import enum
import types
import typing
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(),
    type(None): st.none(),
}


def anything(type_: Any) -> st.SearchStrategy[Any]:
    """Any value of a type of the model, NaN and infinity included."""
    args = get_args(type_)
    match typing.get_origin(type_):
        case types.UnionType | typing.Union:
            found = st.one_of([anything(arg) for arg in args])
        case typing.Literal:
            found = st.sampled_from(args)
        case builtins.dict:
            found = st.dictionaries(anything(args[0]), anything(args[1]), max_size=3)
        case builtins.tuple if args[1:] == (Ellipsis,):
            found = st.lists(anything(args[0]), max_size=3).map(tuple)
        case builtins.tuple:
            found = st.tuples(*map(anything, args))
        case None if issubclass(type_, msgspec.Struct):
            fields = msgspec.structs.fields(type_)
            found = st.builds(type_, **{field.name: anything(field.type) for field in fields})
        case None if issubclass(type_, enum.Enum):
            found = st.sampled_from(list(type_))
        case _:
            found = PLAIN[type_]
    return found


def bits(value: Any) -> bytes:
    """What makes two values the same to the last bit; NaN, too, is the same as itself."""
    return msgspec.msgpack.encode(value)
