"""Chains as users write them, and the chains of ImageNet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .images import CenterCrop, Decode, RandomHorizontalFlip, RandomResizedCrop, Resize, Size
from .numbers import Dtype, Normalize, ToTensor
from .step import Step

if TYPE_CHECKING:
    from ._chain import Chain

#: A native step, or any function.
Link = Step | Callable[[Any], Any]

#: Mean and deviation of ImageNet's channels, for models that were trained on it.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, repr=False)
class Compose:
    """Steps and functions, one after another. A plain list means the same.

    Called with a sample's bytes it returns what a loader would, for a single image or a dataset of
    torch.

    >>> from belady import transforms as T
    >>> T.Compose([T.Decode(), [T.Resize(256), T.CenterCrop(224)], T.ToTensor("uint8")])
    Compose([Decode(), Resize(256), CenterCrop(224), ToTensor(dtype='uint8')])
    """

    transforms: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", flattened(self.transforms))

    def as_json(self) -> list[dict[str, Any]]:
        """Returns the steps as plain data for JSON."""
        for number, step in enumerate(self.transforms, start=1):
            if not isinstance(step, Step):
                name = name_of(step)
                raise ValueError(
                    f"step {number} ({name}) is a function, which cannot be written as JSON"
                )
        return [step.as_json() for step in self.transforms]

    @cached_property
    def _chain(self) -> Chain:
        from ._chain import Chain

        return Chain(self.transforms)

    def __call__(self, data: Any, *, seed: int = 0, epoch: int = 0, sample: int = 0) -> Any:
        return self._chain(data, seed, epoch, sample)

    def __repr__(self) -> str:
        return f"Compose([{', '.join(shown(step) for step in self.transforms)}])"


def flattened(given: Any) -> tuple[Link, ...]:
    """Returns the steps of a chain: one step, or nested lists and `Compose`s."""
    if isinstance(given, Compose):
        return tuple(given.transforms)
    if isinstance(given, Step) or (callable(given) and not isinstance(given, type)):
        return (given,)
    if isinstance(given, type):
        raise TypeError(f"{given.__name__} is a class; write {given.__name__}(...)")
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | dict):
        return tuple(step for item in given for step in flattened(item))
    raise TypeError(
        f"a chain is made of steps of belady.transforms and functions, not {given!r} "
        f"({type(given).__name__})"
    )


def name_of(step: Link) -> str:
    """Returns the name of a step in messages."""
    if isinstance(step, Step):
        return type(step).__name__
    return str(getattr(step, "__name__", None) or type(step).__name__)


def shown(step: Link) -> str:
    """Returns a step as it is written."""
    return repr(step) if isinstance(step, Step) else name_of(step)


def as_json_text(steps: Sequence[Step]) -> str:
    """Returns steps as JSON for the native module."""
    return json.dumps([step.as_json() for step in steps])


def imagenet_train(size: Size = 224, dtype: Dtype = "float32") -> Compose:
    """Returns the usual chain for training on ImageNet: random crop and flip, normalised.

    >>> from belady import transforms as T
    >>> len(T.imagenet_train(224).transforms)
    5
    """
    return Compose(
        [
            Decode(),
            RandomResizedCrop(size),
            RandomHorizontalFlip(),
            ToTensor(dtype),
            *_normalized(dtype),
        ]
    )


def imagenet_eval(size: Size = 224, resize: Size = 256, dtype: Dtype = "float32") -> Compose:
    """Returns the usual chain for evaluation on ImageNet: the centre of the image, normalised.

    >>> from belady import transforms as T
    >>> T.imagenet_eval(224).transforms[1:3]
    (Resize(256), CenterCrop(224))
    """
    return Compose(
        [Decode(), Resize(resize), CenterCrop(size), ToTensor(dtype), *_normalized(dtype)]
    )


def _normalized(dtype: Dtype) -> list[Step]:
    # Bytes are normalised later, on the GPU.
    kind = ToTensor(dtype).dtype
    return [] if kind == "uint8" else [Normalize(IMAGENET_MEAN, IMAGENET_STD)]
