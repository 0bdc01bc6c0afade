"""Steps for what stands beside an image: numbers and text in parts of a sample."""

from __future__ import annotations

from dataclasses import dataclass

from .step import Step


@dataclass(frozen=True, repr=False)
class Int(Step):
    """A whole number written as text, such as `42`; int64."""


@dataclass(frozen=True, repr=False)
class Float(Step):
    """A number written as text, such as `0.5`; float32."""


@dataclass(frozen=True, repr=False)
class Text(Step):
    """UTF-8; a batch has a list of it."""

    native = False


@dataclass(frozen=True, repr=False)
class Bytes(Step):
    """The bytes as they are; a batch has a list of them."""

    native = False


@dataclass(frozen=True, repr=False)
class Label(Step):
    """The label that the dataset, or the loader's `labels`, has for the sample."""

    native = False
