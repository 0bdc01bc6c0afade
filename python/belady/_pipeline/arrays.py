"""Converts arrays of the native module to those of torch or numpy, and back.

Neither is imported here. The libraries that the program has imported decide, as in `collate.py`:
torch, else numpy, else the native array itself, which any library takes through DLPack or as a
buffer."""

from __future__ import annotations

import sys
from typing import Any

from .. import _native
from ..errors import BeladyError
from ..transforms._checks import DTYPES


def for_user(array: _native.Array) -> Any:
    """Returns a native array as one of an imported library, on the same memory."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "from_dlpack"):
        return torch.from_dlpack(array)
    if "numpy" in sys.modules and (array.dtype != "bfloat16" or _bfloat16() is not None):
        return to_numpy(array)
    return array


def to_numpy(array: _native.Array) -> Any:
    """Returns a native array as one of numpy, on the same memory."""
    try:
        import numpy
    except ImportError:
        raise BeladyError(
            "functions in a chain get arrays of numpy, which is not installed: pip install numpy"
        ) from None
    made = numpy.asarray(memoryview(array))
    bfloat16 = _bfloat16()
    return made.view(bfloat16) if array.dtype == "bfloat16" and bfloat16 is not None else made


def _bfloat16() -> Any:
    """Returns the dtype that JAX installs; numpy has none."""
    return getattr(sys.modules.get("ml_dtypes"), "bfloat16", None)


def to_buffer(value: Any) -> tuple[Any, str, tuple[int, ...]]:
    """Returns the result of a function as a buffer, with dtype and shape.

    Raises TypeError if it is no array.
    """
    if isinstance(value, _native.Array):
        return value, value.dtype, value.shape
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        dtype, truth, halves = _named(value, "torch."), torch.uint8, torch.uint16
    else:
        value = _array(value)
        dtype, truth, halves = _named(value, ""), "uint8", "uint16"
    if dtype == "bool":
        value, dtype = value.view(truth), "uint8"
    elif dtype == "bfloat16":
        value = value.view(halves)
    shape = tuple(value.shape)
    return (value.numpy() if hasattr(value, "numpy") else value), dtype, shape


def _array(value: Any) -> Any:
    """Returns an array of numpy in the machine's byte order, without gaps."""
    import numpy

    made = numpy.asarray(value)
    if made.dtype == object:
        raise TypeError(f"{type(value).__name__}, which no step accepts")
    return numpy.asarray(made, dtype=made.dtype.newbyteorder("="), order="C")


def _named(value: Any, prefix: str) -> str:
    name = str(value.dtype).removeprefix(prefix)
    if name not in (*DTYPES, "bool"):
        raise TypeError(f"an array of {name}, which no step accepts")
    return name


def as_bytes(value: Any) -> Any:
    """Returns the result of a function for a step that reads bytes."""
    return value if isinstance(value, bytes | bytearray | memoryview) else to_buffer(value)[0]
