"""The fields of a batch, as `transform=` of a loader describes them.

- a chain: the whole sample; the batch is `(arrays, labels)`;
- `(part, chain)`: the same with one part of the sample;
- a list of `(part, chain)`: a tuple of fields;
- a dict of `name: (part, chain)`, or of `name: chain` for the whole sample: a dict of fields.

A part is a member of a WebDataset sample ("jpg", "jpg;png") or a feature of a `tf.train.Example`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _native
from ..errors import StepError
from ..transforms import Label, Text
from ..transforms._chain import Chain, as_text
from . import arrays
from .collate import collate
from .position import SamplePlace
from .transform_seed import TransformSeed


class Field(NamedTuple):
    """A field of a batch."""

    #: Its name in messages; empty if it is the only one.
    name: str
    #: None for the whole sample.
    part: str | None
    chain: Chain


class Transform:
    """The fields of a batch, and its structure."""

    def __init__(self, given: Any) -> None:
        self.fields, self._keys = _fields(given)
        #: Whether there is one field, beside which the label goes.
        self._beside_label = self._keys is None and not _is_list_of_pairs(given)

    @property
    def native(self) -> bool:
        """Whether all chains run without Python."""
        return all(field.chain.native for field in self.fields)

    @property
    def is_one_native_image(self) -> bool:
        """Whether it makes one image of a whole sample, beside its label."""
        only = self.fields[0]
        return (
            self.native
            and self._beside_label
            and only.part is None
            and only.chain.whole is not None
        )

    def split(self, cut: Callable[[Chain], tuple[Chain, Any]]) -> tuple[Transform, dict[Any, Any]]:
        """Cuts each chain; returns the heads, and the tails by index or name of their field."""
        heads = copy.copy(self)
        heads.fields, tails = [], {}
        keys = self._keys if self._keys is not None else range(len(self.fields))
        for key, field in zip(keys, self.fields, strict=True):
            head, tail = cut(field.chain)
            heads.fields.append(field._replace(chain=head))
            if tail is not None:
                tails[key] = tail
        return heads, tails

    # Natively, a batch at a time.

    def native_fields(self) -> list[tuple[str | None, _native.Chain | None]]:
        """Returns the fields that the native module makes."""
        return [(field.part, field.chain.whole) for field in self.fields if not _is_label(field)]

    def batch(self, made: _native.OutputBatch, labels: Sequence[Any]) -> Any:
        """Returns a batch from native columns and the labels of its samples."""
        columns = self._columns(made, labels)
        if self._beside_label:
            return [columns[0], collate(labels)]
        return self._formed(columns)

    def samples(self, made: _native.OutputBatch, labels: Sequence[Any]) -> list[Any]:
        """Returns the samples of a batch one by one, for a `collate_fn`."""
        columns = self._columns(made, labels, one_by_one=True)
        if self._beside_label:
            return list(zip(columns[0], labels, strict=True))
        return [self._formed(row, tuple) for row in zip(*columns, strict=True)]

    def _columns(
        self, made: _native.OutputBatch, labels: Sequence[Any], *, one_by_one: bool = False
    ) -> list[Any]:
        columns, index = [], 0
        for field in self.fields:
            if _is_label(field):
                columns.append(labels if one_by_one else collate(labels))
                continue
            columns.append(_column(field, made.field(index)))
            index += 1
        return columns

    def _formed(self, columns: Sequence[Any], kind: type[Any] = list) -> Any:
        if self._keys is None:
            return kind(columns)
        return dict(zip(self._keys, columns, strict=True))

    # With Python functions, a sample at a time.

    def sample(self, data: Any, label: Any, seed: int, epoch: int, sample: int) -> Any:
        """Returns a sample as `decode` would."""
        values = [self._value(field, data, label, (seed, epoch, sample)) for field in self.fields]
        return (values[0], label) if self._beside_label else self._formed(values, tuple)

    def _value(self, field: Field, data: Any, label: Any, draw: tuple[int, int, int]) -> Any:
        if _is_label(field):
            return label
        try:
            return field.chain(data, *draw, field.part)
        except StepError as error:
            if not field.name:
                raise
            raise StepError(f"{field.name}: {error}") from error.__cause__


class Applied:
    """A transform with its seed: a `decode` that also gets the sample's place."""

    def __init__(self, transform: Transform, seed: TransformSeed) -> None:
        self._transform = transform
        self._seed = seed

    def __call__(self, data: Any, label: Any, place: SamplePlace) -> Any:
        seed = self._seed.seed_of(place.epoch, place.iteration, place.position)
        epoch = self._seed.epoch(place.epoch)
        return self._transform.sample(data, label, seed, epoch, place.sample)


def _column(field: Field, column: Any) -> Any:
    if isinstance(column, _native.Array):
        return arrays.for_user(column)
    if field.chain.gives is Text:
        return [as_text(value) for value in column]
    return [arrays.for_user(item) if isinstance(item, _native.Array) else item for item in column]


def _is_label(field: Field) -> bool:
    return field.chain.gives is Label


def _fields(given: Any) -> tuple[list[Field], list[Any] | None]:
    """Returns the fields, and their names if they have some."""
    if isinstance(given, dict):
        if not given:
            raise ValueError("transform is an empty dict; name a field, or leave it out")
        fields = [_field(f'"{name}"', *_pair(value)) for name, value in given.items()]
        return fields, list(given)
    if _is_list_of_pairs(given):
        return [_field(f"field {at}", *pair) for at, pair in enumerate(given)], None
    return [_field("", *_pair(given))], None


def _field(name: str, part: str | None, chain: Any) -> Field:
    try:
        return Field(name, part, Chain(chain, of_part=part is not None))
    except (TypeError, ValueError) as error:
        where = f"transform, {name}" if name else "transform"
        raise type(error)(f"{where}: {error}") from None


def _pair(given: Any) -> tuple[str | None, Any]:
    return (given[0], given[1]) if _is_pair(given) else (None, given)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str | None)


def _is_list_of_pairs(given: Any) -> bool:
    return isinstance(given, list | tuple) and bool(given) and all(map(_is_pair, given))
