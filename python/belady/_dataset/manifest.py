"""Datasets whose files the user names: a list in the program, or a table in a file.

Samples have the order in which they are named. The engine gets paths, a number for each label, and
the names of labels if these are text. A table is read when the dataset is listed, so one process of
a job reads it."""

from __future__ import annotations

import builtins
import csv
import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._configuration import arguments

#: Paths, the label of each, and the names of labels.
Files = tuple[list[str], list[int | None], list[str]]

#: Names of columns that are tried, in any case, if the user names none.
_PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
_LABELS = ("label", "class", "target")

#: Labels have 32 bits, and the largest value stands for none.
_MOST_LABELS = 2**32 - 2


class Named(NamedTuple):
    """Files that a program names."""

    paths: tuple[str, ...]
    labels: tuple[int | None, ...]
    classes: tuple[str, ...]

    def files(self, path: str) -> Files:
        """Returns the paths, labels and classes."""
        return list(self.paths), list(self.labels), list(self.classes)


class Table(NamedTuple):
    """A table with a column of paths, relative to it, and perhaps one of labels."""

    path_column: str | None
    label_column: str | None

    def files(self, path: str) -> Files:
        """Returns the paths, labels and classes."""
        separator = "\t" if path.lower().endswith(".tsv") else ","
        with builtins.open(
            path, newline="", encoding="utf-8-sig", errors="surrogateescape"
        ) as stream:
            rows = csv.reader(stream, delimiter=separator, strict=True)
            try:
                return self._read(rows, path)
            except csv.Error as error:
                raise ValueError(
                    f"{path}, line {rows.line_num}, is not part of a table: {error}"
                ) from None

    def _read(self, rows: Any, path: str) -> Files:
        header: list[str] = next(rows, [])
        at = _column(header, self.path_column, _PATHS, "path_column", path)
        if at is None:
            raise ValueError(
                f"{path} has no column of paths; its columns are {_shown(header)}: name one with "
                "path_column="
            )
        label_at = _column(header, self.label_column, _LABELS, "label_column", path)
        paths: list[str] = []
        labels: list[str] = []
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"{path}, line {rows.line_num}, has {len(row)} fields, and the header "
                    f'{len(header)}; put "..." around fields with a comma'
                )
            paths.append(arguments.path(row[at], f"{path}, line {rows.line_num}: {header[at]}"))
            if label_at is not None:
                labels.append(row[label_at])
        if not paths:
            raise ValueError(f"{path} names no files; it needs a header and a line for each file")
        return paths, *numbered(_numbers_or_text(labels), f"{path}: {_LABELS[0]}")


def is_table(path: str) -> bool:
    """Whether a path is a table."""
    return path.lower().endswith((".csv", ".tsv")) and os.path.isfile(path)


def named(given: Iterable[Any], labels: Any) -> tuple[str, Named]:
    """Returns the common directory of a list of files, and the files."""
    paths = [os.path.abspath(arguments.path(path, f"path[{at}]")) for at, path in enumerate(given)]
    if not paths:
        raise ValueError("path is an empty list; name at least one file")
    root = os.path.commonpath({os.path.dirname(path) for path in paths})
    numbers, classes = numbered([] if labels is None else labels, "labels")
    if labels is not None and len(numbers) != len(paths):
        raise ValueError(
            f"labels has {len(numbers)} entries for {len(paths)} files; give one for each file"
        )
    within = (path.removeprefix(root).lstrip("/") for path in paths)
    return root, Named(tuple(within), tuple(numbers), tuple(classes))


def numbered(given: Any, name: str) -> tuple[list[int | None], list[str]]:
    """Returns labels as numbers, and their names; text becomes classes in sorted order."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{name} has to be a list with an entry for each file")
    labels: Sequence[Any] = given.tolist() if hasattr(given, "tolist") else list(given)
    if any(isinstance(label, str) for label in labels):
        return _classes(labels, name)
    return [_number(label, f"{name}[{at}]") for at, label in enumerate(labels)], []


def _classes(labels: Sequence[Any], name: str) -> tuple[list[int | None], list[str]]:
    for at, label in enumerate(labels):
        if label is not None and not isinstance(label, str):
            raise TypeError(
                f"{name}[{at}] is {label!r}, and others are text; make all of them text"
            )
    classes = sorted({label for label in labels if label is not None})
    numbers = {label: number for number, label in enumerate(classes)}
    return [None if label is None else numbers[label] for label in labels], classes


def _number(label: object, name: str) -> int | None:
    """Returns a label that is a number; None for None and -1."""
    if label is None:
        return None
    if isinstance(label, bool) or not hasattr(label, "__index__"):
        raise TypeError(
            f"{name} has to be a whole number or text, not {label!r} ({type(label).__name__}); a "
            "loader takes labels of any kind: DataLoader(..., labels=)"
        )
    number = operator.index(label)
    return None if number == -1 else arguments.count(number, name, most=_MOST_LABELS)


def _is_decimal(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _numbers_or_text(column: list[str]) -> list[Any]:
    """Returns a column of labels: numbers if all are, as Python writes them; empty ones as None."""
    fields = [field.strip() or None for field in column]
    try:
        numbers = [None if field is None else int(field) for field in fields]
    except ValueError:
        if all(field is None or _is_decimal(field) for field in fields):
            raise ValueError(
                "the labels of the table are numbers that are not whole (as pandas writes a column "
                "with gaps); write whole numbers or text, or give them to DataLoader(..., labels=)"
            ) from None
        return fields
    same = all(field is None or str(number) == field for number, field in zip(numbers, fields))
    return list(numbers) if same else fields


def _column(
    header: list[str], name: str | None, usual: Sequence[str], argument: str, path: str
) -> int | None:
    if name is not None:
        if name not in header:
            raise ValueError(
                f"{argument}: {path} has no column {name!r}{arguments.nearest(name, header)}; its "
                f"columns are {_shown(header)}"
            )
        return header.index(name)
    lowered = [column.strip().lower() for column in header]
    return next((lowered.index(one) for one in usual if one in lowered), None)


def _shown(header: list[str]) -> str:
    return ", ".join(repr(column) for column in header[:10]) or "none"
