"""Steps for values beside an image: numbers and text in parts of a sample."""

from __future__ import annotations

from dataclasses import dataclass

from .step import Step


@dataclass(frozen=True, repr=False)
class Int(Step):
    """Reads a whole number written as text, such as `42`; int64."""


@dataclass(frozen=True, repr=False)
class Float(Step):
    """Reads a number written as text, such as `0.5`; float32."""


@dataclass(frozen=True, repr=False)
class Text(Step):
    """Reads UTF-8 text; a batch has a list of strings."""

    native = False


@dataclass(frozen=True, repr=False)
class Bytes(Step):
    """Gives the unchanged bytes; a batch has a list of them."""

    native = False


@dataclass(frozen=True, repr=False)
class Label(Step):
    """Gives the sample's label, from the dataset or the loader's `labels`."""

    native = False
