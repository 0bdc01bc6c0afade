"""What all steps have in common."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from . import checks


class Step:
    """One step: plain data that is checked when it is made, compared by value, and printed as it
    was written.

    A step is a frozen dataclass whose `_arguments` says what its arguments mean to the native
    module. They keep what was written.
    """

    #: Whether the native module runs it. Others are values beside the arrays, such as text.
    native: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, checks.plain(getattr(self, field.name)))
        self._arguments()

    def _arguments(self) -> dict[str, Any]:
        """The arguments, checked, as the native module takes them."""
        return {}

    def as_json(self) -> dict[str, Any]:
        """The step as plain data, good for JSON.

        >>> from belady import transforms as T
        >>> T.CenterCrop(224).as_json()
        {'op': 'CenterCrop', 'size': [224, 224]}
        """
        return {"op": type(self).__name__, **self._arguments()}

    def _set(self, name: str, value: object) -> None:
        """Keeps an argument in the one way in which it is written among several."""
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING:
                shown.append(repr(value))
            elif value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

