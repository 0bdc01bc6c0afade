"""Steps that make arrays, and steps on their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._configuration import arguments
from . import _checks as checks
from .step import Step

#: A name, or a dtype of torch, numpy or JAX.
Dtype = Any
Shape = int | Sequence[int | None] | None
Numbers = float | Sequence[float]


@dataclass(frozen=True, repr=False)
class ToTensor(Step):
    """Converts pixels to floats from 0 to 1, or leaves uint8; `layout` is "CHW" or "HWC"."""

    dtype: Dtype = "float32"
    layout: str = "CHW"

    def _arguments(self) -> dict[str, Any]:
        kinds = ("uint8", "float16", "bfloat16", "float32")
        self._set("dtype", checks.dtype(self.dtype, "ToTensor: dtype", kinds))
        layout = arguments.choice(self.layout, "ToTensor: layout", ("CHW", "HWC"))
        return {"dtype": self.dtype, "layout": layout}


@dataclass(frozen=True, repr=False)
class Normalize(Step):
    """Computes `(x - mean) / std` for each channel. `inplace` is accepted and ignored."""

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
            raise ValueError("Normalize: std must not be zero, since it divides")
        arguments.flag(self.inplace, "Normalize: inplace")
        return {"mean": mean, "std": std}


@dataclass(frozen=True, repr=False)
class Reshape(Step):
    """Changes the shape; an extent of -1 or None takes the rest."""

    shape: Shape

    def _arguments(self) -> dict[str, Any]:
        return {"shape": checks.shape(self.shape, "Reshape: shape")}


@dataclass(frozen=True, repr=False)
class ScaleShift(Step):
    """Computes `x * scale + shift`, with one number or one for each channel (the first extent)."""

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
    """Computes `ln(x + offset)`."""

    offset: float = 1.0

    def _arguments(self) -> dict[str, Any]:
        return {"offset": checks.number(self.offset, "Log: offset")}


@dataclass(frozen=True, repr=False)
class ToDtype(Step):
    """Converts numbers to another dtype, by value."""

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
    """Reads a file of NumPy (`.npy`)."""


@dataclass(frozen=True, repr=False)
class Raw(Step):
    """Reads bytes as numbers of a dtype and shape; an extent of -1 or None takes the rest."""

    dtype: Dtype
    shape: Shape = (None,)

    def _arguments(self) -> dict[str, Any]:
        self._set("dtype", checks.dtype(self.dtype, "Raw: dtype"))
        return {"dtype": self.dtype, "shape": checks.shape(self.shape, "Raw: shape")}
