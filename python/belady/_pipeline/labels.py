"""Labels that the user gives beside the dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BeladyError

if TYPE_CHECKING:
    from .._dataset.dataset import Dataset


class Labels:
    """The label of each sample, from one of:

    - a sequence or an array, by the sample's id;
    - a mapping, by id, by path, or by the path within the dataset;
    - a function of the path.
    """

    def __init__(self, given: Any, data: Dataset) -> None:
        self._data = data
        # A dataset may be one file: a table, or a packed one.
        is_file = os.path.isfile(data.path)
        self._root = os.path.dirname(data.path) if is_file else data.path
        self._find = self._finder(given)

    def of(self, ids: Sequence[int]) -> list[Any]:
        """Returns the labels of these samples."""
        return [self._find(sample) for sample in ids]

    def _finder(self, given: Any) -> Callable[[int], Any]:
        if isinstance(given, Mapping):
            by_path = isinstance(next(iter(given), None), str)
            return lambda sample: self._mapped(given, sample, by_path)
        if isinstance(given, str | bytes):
            raise TypeError("labels has to be a list, a mapping or a function, not text")
        if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
            if len(given) != len(self._data):
                raise ValueError(
                    f"labels has {len(given)} entries, and the dataset {len(self._data)} samples; "
                    "give one for each id, or a mapping by path"
                )
            return lambda sample: given[sample]
        if callable(given):
            return lambda sample: given(self._data.paths[sample])
        raise TypeError(
            "labels has to be a list, a mapping or a function of the path, "
            f"not {type(given).__name__}"
        )

    def _mapped(self, given: Mapping[Any, Any], sample: int, by_path: bool) -> Any:
        path = self._data.paths[sample]
        names = (path, os.path.relpath(path, self._root)) if by_path else (sample,)
        for name in names:
            if name in given:
                return given[name]
        raise BeladyError(f"labels has no entry for {path} (sample {sample})")
