"""Steps that make arrays, and that work on their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import arguments
from . import checks
from .step import Step

#: A name, or a dtype of torch, numpy or JAX.
Dtype = Any
Shape = int | Sequence[int | None] | None
Numbers = float | Sequence[float]


@dataclass(frozen=True, repr=False)
class ToTensor(Step):
    """Pixels become numbers: floats from 0 to 1, or uint8 as they are; `layout` "CHW" or "HWC"."""

    dtype: Dtype = "float32"
    layout: str = "CHW"

    def _arguments(self) -> dict[str, Any]:
        kinds = ("uint8", "float16", "bfloat16", "float32")
        self._set("dtype", checks.dtype(self.dtype, "ToTensor: dtype", kinds))
        layout = arguments.choice(self.layout, "ToTensor: layout", ("CHW", "HWC"))
        return {"dtype": self.dtype, "layout": layout}


@dataclass(frozen=True, repr=False)
class Normalize(Step):
    """`(x - mean) / std` for each channel. `inplace` is accepted, and makes no difference."""

    mean: Numbers
    std: Numbers
    inplace: bool = False

    def _arguments(self) -> dict[str, Any]:
        mean = checks.for_channels(self.mean, "Normalize: mean")
        std = checks.for_channels(self.std, "Normalize: std")
        if len(mean) != len(std):
            raise ValueError(
                f"Normalize: mean has {len(mean)} numbers and std {len(std)}; give one a channel"
            )
        if not all(std):
            raise ValueError("Normalize: std is divided by, so none of it can be zero")
        arguments.flag(self.inplace, "Normalize: inplace")
        return {"mean": mean, "std": std}


@dataclass(frozen=True, repr=False)
class Reshape(Step):
    """The same numbers in another shape; an extent of -1 or None takes what is left."""

    shape: Shape

    def _arguments(self) -> dict[str, Any]:
        return {"shape": checks.shape(self.shape, "Reshape: shape")}


@dataclass(frozen=True, repr=False)
class ScaleShift(Step):
    """`x * scale + shift`; a number for all, or one for each channel (the first extent)."""

    scale: Numbers = 1
    shift: Numbers = 0

    def _arguments(self) -> dict[str, Any]:
        scale = checks.for_channels(self.scale, "ScaleShift: scale")
        shift = checks.for_channels(self.shift, "ScaleShift: shift")
        most = max(len(scale), len(shift))
        if {len(scale), len(shift)} - {1, most}:
            raise ValueError(
                f"ScaleShift: scale has {len(scale)} numbers and shift {len(shift)}; give one for "
                "all, or one a channel"
            )
        return {
            "scale": scale * (most // len(scale)),
            "shift": shift * (most // len(shift)),
        }


@dataclass(frozen=True, repr=False)
class Log(Step):
    """`ln(x + offset)`."""

    offset: float = 1.0

    def _arguments(self) -> dict[str, Any]:
        return {"offset": checks.number(self.offset, "Log: offset")}


@dataclass(frozen=True, repr=False)
class ToDtype(Step):
    """Numbers of another kind, by value."""

    dtype: Dtype
    scale: bool = False

    def _arguments(self) -> dict[str, Any]:
        self._set("dtype", checks.dtype(self.dtype, "ToDtype: dtype"))
        if arguments.flag(self.scale, "ToDtype: scale"):
            raise ValueError(
                f'ToDtype: scale=True on an image is ToTensor(dtype="{self.dtype}") here; on other '
                "numbers use ScaleShift"
            )
        return {"dtype": self.dtype}


@dataclass(frozen=True, repr=False)
class Numpy(Step):
    """The bytes are a file of NumPy (`.npy`)."""


@dataclass(frozen=True, repr=False)
class Raw(Step):
    """The bytes are numbers of this kind and shape; an extent of -1 or None takes what is left."""

    dtype: Dtype
    shape: Shape = (None,)

    def _arguments(self) -> dict[str, Any]:
        self._set("dtype", checks.dtype(self.dtype, "Raw: dtype"))
        return {"dtype": self.dtype, "shape": checks.shape(self.shape, "Raw: shape")}
