"""Collates lists of samples into batches, by torch's rules.

Tuples, lists and dicts are collated field by field. Arrays are stacked by their own library.
Numbers become an array of the library of the sample's arrays; if it has none, of torch or numpy if
one of them is imported, else a list. All else (bytes, text, objects) becomes a list. No library is
imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: In the order in which they are tried.
_LIBRARIES = ("torch", "numpy", "jax", "tensorflow")


def collate(samples: Sequence[Any]) -> Any:
    """Returns a batch of samples that all have one structure.

    >>> collate([(b"one", "a"), (b"two", "b")])
    [[b'one', b'two'], ['a', 'b']]
    """
    return _collate(samples, _library_within(samples[0]) or _imported_library())


def _collate(samples: Sequence[Any], library: str | None) -> Any:
    first = samples[0]
    own = _library_of(first)
    if own is not None:
        return _stack(samples, own)
    if isinstance(first, bool | int | float) or _is_numpy_scalar(first):
        return _numbers(samples, library)
    if isinstance(first, Mapping):
        return {key: _collate([sample[key] for sample in samples], library) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*_fields(samples, library))
    if isinstance(first, tuple | list):
        return _fields(samples, library)
    return list(samples)


def _fields(samples: Sequence[Any], library: str | None) -> list[Any]:
    lengths = {len(sample) for sample in samples}
    if len(lengths) > 1:
        raise ValueError(
            f"samples of one batch have different numbers of fields ({sorted(lengths)}); "
            "let decode return the same for every sample, or pass collate_fn"
        )
    return [_collate(field, library) for field in zip(*samples, strict=True)]


def _stack(samples: Sequence[Any], library: str) -> Any:
    module: Any = sys.modules[library]
    if library == "jax":
        module = sys.modules["jax.numpy"]
    stack: Callable[[Any], Any] = module.stack
    try:
        return stack(list(samples))
    except (ValueError, RuntimeError, TypeError) as error:
        shapes = sorted({str(tuple(sample.shape)) for sample in samples})
        if len(shapes) == 1:
            raise
        raise ValueError(
            f"samples of one batch have different shapes ({', '.join(shapes[:4])}); "
            "let decode make them equal, or pass collate_fn"
        ) from error


def _numbers(samples: Sequence[Any], library: str | None) -> Any:
    first = samples[0]
    if library == "torch":
        torch: Any = sys.modules["torch"]
        # As torch's collate does: Python's floats are doubles.
        return torch.tensor(samples, dtype=torch.float64 if isinstance(first, float) else None)
    if library == "tensorflow":
        return sys.modules["tensorflow"].constant(samples)
    if library == "jax":
        return sys.modules["jax.numpy"].asarray(samples)
    if library == "numpy":
        return sys.modules["numpy"].asarray(samples)
    return list(samples)


def _library_within(value: Any) -> str | None:
    """Returns the library of the first array in a sample."""
    own = _library_of(value)
    if own is not None:
        return own
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return next((found for item in value if (found := _library_within(item))), None)
    return None


def _library_of(value: Any) -> str | None:
    for library in _LIBRARIES:
        module: Any = sys.modules.get(library)
        kind = getattr(module, _ARRAYS[library], None)
        if isinstance(kind, type) and isinstance(value, kind):
            return library
    return None


_ARRAYS = {"torch": "Tensor", "numpy": "ndarray", "jax": "Array", "tensorflow": "Tensor"}


def _is_numpy_scalar(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _imported_library() -> str | None:
    return next((name for name in ("torch", "numpy") if name in sys.modules), None)
