"""Read a pickle of lists, dicts and NumPy arrays without executing anything it says.

A pickle is a program. The interpreter below knows only the operations that build lists, tuples,
dicts, strings and numbers. If a pickle calls NumPy to make a dtype or an array, the interpreter
only records the arguments; :meth:`PickledArray.build` makes the array from the recorded bytes after
checking their number. Python's own unpickler is not used, because a crafted pickle (memo indices,
deeply nested keys) makes it crash or take all memory before any class lookup. NumPy's
reconstructors are not used, because a damaged pickle can crash them.

All protocols are supported, including Python 2's, whose bytes are text, one character per byte.
"""

from __future__ import annotations

import codecs
import io
import math
import pickletools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.policies.demonstration_formats.base import Array

# A demonstration takes 100 to 220 operations; each may cost some 100 bytes of memory.
_MOST_OPERATIONS = 2_000_000
_MOST_DIMENSIONS = 32
_MOST_ENTRIES = 2**62
# Largest size in bytes that an empty array may have if its dimensions of zero are taken as one.
_MOST_EMPTY = 2**31
# Bytes that all arrays together may take beyond the file's size, because a few bytes of a pickle
# can name the same array many times; and the overhead of one array. A pickle of _MOST_OPERATIONS
# that names each array once stays below the limit.
_SHARED = 2**24
_ARRAY_BYTES = 128

_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}

_GLOBALS = {
    "numpy.core.multiarray _reconstruct": "_reconstruct",
    "numpy._core.multiarray _reconstruct": "_reconstruct",
    "numpy.core.multiarray scalar": "scalar",
    "numpy._core.multiarray scalar": "scalar",
    "numpy.core.numeric _frombuffer": "_frombuffer",  # protocol 5
    "numpy._core.numeric _frombuffer": "_frombuffer",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",  # protocols 0 to 2 have no bytes: Python 3 writes calls instead
    "__builtin__ bytes": "bytes",
    "builtins bytes": "bytes",
}
# Operations whose argument is the value itself.
_LITERALS = frozenset(
    [
        "NONE",
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
    ]
)
_DTYPE_CODES = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])


class RefusedError(Exception):
    """Raised for content of a pickle that is not read; the text describes it."""


@dataclass(frozen=True)
class StandIn:
    """A placeholder on the stack for a global that a pickle may use."""

    kind: str


@dataclass
class _PickledDtype:
    code: str
    order: str = "="

    def resolve(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Latin1:
    """Bytes as text, encoded on use only: a few bytes of a pickle can repeat the same text."""

    text: str


@dataclass
class Allowance:
    """The number of bytes that all arrays of one pickle may still take."""

    left: int


@dataclass
class PickledArray:
    """A pickle's description of an array, untrusted until :meth:`build` checks it."""

    allowance: Allowance
    data: Any = None
    dtype: Any = None
    shape: Any = None
    order: Any = "C"
    axes: Any = None

    def build(self, where: str) -> Array:
        """Return the array, read-only.

        Raises:
            InvalidEpisodeError: the type is not plain numbers, or type, shape and bytes disagree.
        """
        try:
            return self._checked()
        except RefusedError as error:
            raise InvalidEpisodeError(f"{where} {error}") from error

    def _checked(self) -> Array:
        if not isinstance(self.dtype, _PickledDtype):
            raise RefusedError("is an array without a dtype")
        dtype = self.dtype.resolve()
        shape = self.shape
        if not isinstance(shape, tuple) or len(shape) > _MOST_DIMENSIONS:
            raise RefusedError("is an array without a usable shape")
        if not all(type(n) is int and 0 <= n < _MOST_ENTRIES for n in shape):
            raise RefusedError("is an array with an impossible shape")
        data = _as_bytes(self.data)
        if data is None:
            raise RefusedError(f"stores its values as a {type_name(self.data)}, not as bytes")
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes != len(data):
            raise RefusedError(
                f"has {len(data)} bytes, but shape {shape} of {dtype} needs {n_bytes}"
            )
        if not n_bytes and math.prod(n for n in shape if n) * dtype.itemsize > _MOST_EMPTY:
            # A dimension of zero makes any other size fit.
            raise RefusedError(f"has the impossible shape {shape}")
        self.allowance.left -= n_bytes + _ARRAY_BYTES
        if self.allowance.left < 0:
            raise RefusedError(
                "reuses the data of another array; together they are larger than the file"
            )
        flat: Array = np.frombuffer(data, dtype=dtype) if data else np.empty(0, dtype)
        flat.flags.writeable = False  # a bytearray may be the data of other arrays too
        return self._arranged(flat)

    def _arranged(self, flat: Array) -> Array:
        if self.axes is None and self.order in ("C", "F"):
            return flat.reshape(self.shape, order=self.order)
        if (
            self.order == "K"
            and isinstance(self.axes, tuple)
            and all(type(n) is int for n in self.axes)
            and sorted(self.axes) == list(range(len(self.shape)))
        ):
            return flat.reshape(self.shape).transpose(self.axes)
        raise RefusedError("is an array with an unknown memory order")


@dataclass
class PickledScalar:
    """A pickle's description of a NumPy scalar, untrusted until :meth:`build` checks it."""

    allowance: Allowance
    dtype: Any
    data: Any

    def build(self, where: str) -> Array:
        """Return the scalar as an array of shape ``()``; raise like :meth:`PickledArray.build`."""
        return PickledArray(self.allowance, self.data, self.dtype, ()).build(where)


def type_name(value: Any) -> str:
    """Return the name of an unpickled value's type for messages."""
    if isinstance(value, PickledArray):
        return "NumPy array"
    if isinstance(value, PickledScalar):
        return "NumPy scalar"
    if isinstance(value, _Latin1):
        return "bytes"
    return type(value).__name__.lstrip("_")


def load(path: Path, label: str) -> Any:
    """Read a pickle; return its arrays as :class:`PickledArray`, not built yet.

    Args:
        path: the file.
        label: name of the file in messages.

    Raises:
        InvalidEpisodeError: the file is damaged, or holds or calls anything else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in a damaged file
            return _run(path.read_bytes())
    except RefusedError as error:
        raise InvalidEpisodeError(f"{label}: {error}") from error
    except (ValueError, LookupError, ArithmeticError, MemoryError, OSError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InvalidEpisodeError(
            f"{label} is damaged or not a pickle file ({reason}); fetch it again"
        ) from error


def _run(data: bytes) -> Any:
    return interpret(data, Machine(Allowance(len(data) + _SHARED)))


def interpret(data: bytes, machine: Machine) -> Any:
    """Run a pickle on a machine; return the one value left on its stack.

    Raises:
        RefusedError: the pickle holds or calls something that the machine does not know.
        ValueError, LookupError, ArithmeticError, MemoryError: the pickle is damaged.
    """
    stream = io.BytesIO(data)
    for count, (name, argument) in enumerate(_operations(stream)):
        if count > _MOST_OPERATIONS:
            raise RefusedError(f"has more than {_MOST_OPERATIONS} operations; {machine.hint}")
        machine.step(name, argument)
    if stream.tell() != len(data):
        raise RefusedError(f"has {len(data) - stream.tell()} bytes after the end of the pickle")
    if len(machine.stack) != 1 or machine.marks:
        raise ValueError("values are left over at the end")
    return machine.stack[0]


def _operations(stream: io.BytesIO) -> Iterator[tuple[str, Any]]:
    """Yield each operation before STOP and its argument.

    Unlike :func:`pickletools.genops`, which decodes Python 2's STRING as ASCII, this decodes it as
    Latin-1, like the binary forms.
    """
    while code := stream.read(1):
        opcode = _OPCODES.get(code)
        if opcode is None:
            raise ValueError(f"unknown pickle operation {code!r}")
        if opcode.name == "STOP":
            return
        if opcode.name == "STRING":
            escaped = pickletools.read_stringnl(stream, decode=False)
            yield opcode.name, codecs.escape_decode(escaped)[0].decode("latin-1")
        else:
            yield opcode.name, opcode.arg.reader(stream) if opcode.arg else None
    raise ValueError("pickle exhausted before seeing STOP")


class Machine:
    """The stack and memo of a pickle, and the effect of each permitted operation on them."""

    globals: ClassVar[Mapping[str, str]] = _GLOBALS
    """The only globals that a pickle may use, with the kind of placeholder for each."""
    hint = "only a list of dicts of plain NumPy arrays can be read"

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        match name:
            case "PROTO" | "FRAME":
                pass
            case _ if name in _LITERALS:
                self.stack.append(argument)
            case "NEWTRUE" | "NEWFALSE":
                self.stack.append(name == "NEWTRUE")
            case "MARK":
                self.marks.append(len(self.stack))
            case "POP":
                self.pop()
            case "POP_MARK":
                self.pop_to_mark()
            case "DUP":
                self.stack.append(self.stack[-1])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case "EMPTY_LIST":
                self.stack.append([])
            case "LIST":
                self.stack.append(self.pop_to_mark())
            case "APPEND":
                value = self.pop()
                self.top(list).append(value)
            case "APPENDS":
                values = self.pop_to_mark()
                self.top(list).extend(values)
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                values = [self.pop() for _ in range(int(name[-1]) if name[-1].isdigit() else 0)]
                self.stack.append(tuple(reversed(values)))
            case "TUPLE":
                self.stack.append(tuple(self.pop_to_mark()))
            case "EMPTY_DICT":
                self.stack.append({})
            case "DICT":
                values = self.pop_to_mark()
                self.stack.append({})
                self.set_items(values)
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self.set_items([key, value])
            case "SETITEMS":
                self.set_items(self.pop_to_mark())
            case "GLOBAL" | "STACK_GLOBAL":
                self.push_global(argument)
            case "REDUCE":
                self.call()
            case "BUILD":
                self.build()
            case "INST":
                raise RefusedError(_names_global(argument, self.hint))
            case "NEXT_BUFFER" | "READONLY_BUFFER":
                raise RefusedError(
                    f"keeps values outside the file (pickle operation {name}); "
                    f"write the pickle without a buffer_callback"
                )
            case _:
                raise RefusedError(f"contains the pickle operation {name}; {self.hint}")

    def pop(self) -> Any:
        if self.marks and self.marks[-1] == len(self.stack):
            raise ValueError("a value is missing")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"a {kind.__name__} is missing")
        return self.stack[-1]

    def set_items(self, flat: list[Any]) -> None:
        holder = self.top(dict)
        if len(flat) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            # Only strings, because hashing a deeply nested tuple overflows the C stack.
            if not isinstance(key, str):
                raise RefusedError(
                    f"contains a dict with a key of type {type_name(key)}; {self.hint}"
                )
            holder[key] = value

    def push_global(self, argument: Any) -> None:
        if argument is None:  # STACK_GLOBAL
            name, module = self.pop(), self.pop()
            if not isinstance(name, str) or not isinstance(module, str):
                raise ValueError("a name is missing")
            argument = f"{module} {name}"
        if argument not in self.globals:
            raise RefusedError(_names_global(argument, self.hint))
        self.stack.append(StandIn(self.globals[argument]))

    def call(self) -> None:
        """Record the arguments of a call to NumPy; do not make the call."""
        arguments, callee = self.pop(), self.pop()
        if not isinstance(callee, StandIn) or not isinstance(arguments, tuple):
            raise RefusedError(f"calls an object of type {type_name(callee)}; {self.hint}")
        match callee.kind, arguments:
            case "_reconstruct", (StandIn("ndarray"), *_):
                self.stack.append(PickledArray(self.allowance))
            case "_frombuffer", (_, _, _, _) | (_, _, _, _, _):
                self.stack.append(PickledArray(self.allowance, *arguments))
            case "scalar", (_, _):
                self.stack.append(PickledScalar(self.allowance, *arguments))
            case "dtype", (code, *_):
                self.stack.append(_dtype(code))
            case "encode", (str(text), "latin1"):
                self.stack.append(_Latin1(text))
            case "bytes", ():
                self.stack.append(b"")
            case _:
                raise RefusedError(f"calls {callee.kind} with unexpected arguments; {self.hint}")

    def build(self) -> None:
        """Record the state that the pickle sets on a NumPy object."""
        state = self.pop()
        target = self.stack[-1]
        if isinstance(target, PickledArray) and isinstance(state, tuple) and len(state) == 5:
            _, target.shape, target.dtype, fortran_order, target.data = state
            target.order, target.axes = "F" if fortran_order else "C", None
        elif isinstance(target, _PickledDtype) and isinstance(state, tuple) and len(state) >= 5:
            _set_order(target, state)
        else:
            raise RefusedError(
                f"sets the state of an object of type {type_name(target)}; {self.hint}"
            )


def _dtype(code: Any) -> _PickledDtype:
    code = code.decode("latin-1") if isinstance(code, bytes) else code
    if not isinstance(code, str) or code not in _DTYPE_CODES:
        raise RefusedError(f"holds an array of type {_short(code)}, expected plain numbers")
    return _PickledDtype(code)


def _set_order(dtype: _PickledDtype, state: tuple[Any, ...]) -> None:
    order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
    if not isinstance(order, str) or order not in ("<", ">", "|", "="):
        raise RefusedError(f"holds an array with an unknown byte order, {_short(order)}")
    if any(part is not None for part in state[2:5]):
        raise RefusedError("holds an array of a structured type, expected plain numbers")
    dtype.order = order


def _as_bytes(data: Any) -> bytes | bytearray | None:
    text = data.text if isinstance(data, _Latin1) else data
    if isinstance(text, str):
        # Python 2 wrote bytes as text; NumPy converts it in the same way.
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:
            return None
    return text if isinstance(text, bytes | bytearray) else None


def _names_global(argument: Any, hint: str) -> str:
    name = _short(str(argument).replace(" ", "."))
    return f"refers to the global {name}, which is not executed; {hint}"


def _short(value: Any) -> str:
    if not isinstance(value, str):
        return f"a {type_name(value)}"
    return repr(value if len(value) <= 80 else value[:80] + "…")
