"""Arrays of the native module as those of torch or numpy, and the other way round.

Neither is imported here; what the program has imported decides, as in `collate.py`: torch, else
numpy, else the native array itself, which any library takes through DLPack or as a buffer.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _native
from .errors import BeladyError
from .transforms.checks import DTYPES


def given(array: _native.Array) -> Any:
    """A native array as the program wants it. It lies on the same memory."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "from_dlpack"):
        return torch.from_dlpack(array)
    if "numpy" in sys.modules and (array.dtype != "bfloat16" or _bfloat16() is not None):
        return of_numpy(array)
    return array


def of_numpy(array: _native.Array) -> Any:
    """A native array as one of numpy, on the same memory."""
    try:
        import numpy
    except ImportError:
        raise BeladyError(
            "functions in a chain are called with arrays of numpy, which is not installed: "
            "pip install numpy"
        ) from None
    made = numpy.asarray(memoryview(array))
    bfloat16 = _bfloat16()
    return made.view(bfloat16) if array.dtype == "bfloat16" and bfloat16 is not None else made


def _bfloat16() -> Any:
    """The dtype that JAX brings along; numpy has none."""
    return getattr(sys.modules.get("ml_dtypes"), "bfloat16", None)


def taken(value: Any) -> tuple[Any, str, tuple[int, ...]]:
    """What a function returned as a buffer, with its dtype and shape; TypeError if it is none."""
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
    """As an array of numpy, in the machine's byte order and without gaps."""
    import numpy

    made = numpy.asarray(value)
    if made.dtype == object:
        raise TypeError(f"{type(value).__name__}, of which no step makes anything")
    return numpy.asarray(made, dtype=made.dtype.newbyteorder("="), order="C")


def _named(value: Any, prefix: str) -> str:
    name = str(value.dtype).removeprefix(prefix)
    if name not in (*DTYPES, "bool"):
        raise TypeError(f"an array of {name}, of which no step makes anything")
    return name


def as_bytes(value: Any) -> Any:
    """What a function returned for a step that begins with bytes."""
    return value if isinstance(value, bytes | bytearray | memoryview) else taken(value)[0]
