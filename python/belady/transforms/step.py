"""The base class of steps."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from . import _checks as checks


class Step:
    """One step: plain data, checked when it is made, compared by value, and printed as written.

    A step is a frozen dataclass. `_arguments` returns its arguments as the native module takes
    them; the fields keep what was written."""

    #: Whether the native module runs it. Others give values beside the arrays, such as text.
    native: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, checks.plain(getattr(self, field.name)))
        self._arguments()

    def _arguments(self) -> dict[str, Any]:
        """Checks the arguments; returns them as the native module takes them."""
        return {}

    def as_json(self) -> dict[str, Any]:
        """Returns the step as plain data for JSON.

        >>> from belady import transforms as T
        >>> T.CenterCrop(224).as_json()
        {'op': 'CenterCrop', 'size': [224, 224]}
        """
        return {"op": type(self).__name__, **self._arguments()}

    def _set(self, name: str, value: object) -> None:
        """Replaces an argument by its canonical form."""
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
