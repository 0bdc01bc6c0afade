"""Checks of arguments.

Every check takes a value and the name of its argument, and returns what the engine takes. A value
of the wrong kind is a `TypeError`, an impossible one a `ValueError`, with one sentence that says
what was expected."""

from __future__ import annotations

import difflib
import logging
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from .. import _native
from . import memory

log = logging.getLogger("belady")

T = TypeVar("T", bound=str)

#: A cache tier: its directory (None for RAM) and its quota in bytes.
Tier = tuple[str | None, int]

#: A scheme, as of object stores; a colon in a directory's name is none.
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def size(value: object, name: str) -> int:
    """Returns bytes, from a number or from text such as "40GiB" or "500 GB"."""
    if isinstance(value, str):
        try:
            value = _native.parse_size(value)
        except ValueError:
            raise ValueError(
                f'{name}: "{value}" is not a size; write a number of bytes or a number and one '
                "of KB, MB, GB, TB, KiB, MiB, GiB, TiB, for example 40GiB"
            ) from None
    return count(value, name, most=2**60, kind="a number of bytes or text such as 40GiB")


#: The engine counts epochs, batches and threads in 32 bits.
MOST = 2**32 - 1


def count(
    value: object, name: str, *, least: int = 0, most: int = MOST, kind: str = "a whole number"
) -> int:
    """Returns a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} has to be {kind}, not {shown(value)}")
    given = int(value)
    if given < least:
        raise ValueError(f"{name} has to be at least {least}, not {given}")
    if given > most:
        raise ValueError(f"{name} has to be at most {most}, not {given}")
    return given


#: More threads than a process can have on most machines.
_MOST_THREADS = 10_000


def threads(value: object, name: str) -> int | None:
    """Returns a number of threads; None for "auto"."""
    if value is None or value == "auto":
        return None
    if isinstance(value, str):
        raise ValueError(f'{name} has to be "auto" or a number, not "{value}"')
    return count(value, name, least=1, most=_MOST_THREADS)


#: Ten years: a longer time would overflow clocks.
_FOR_EVER = 10 * 366 * 24 * 3600.0


def seconds(value: object, name: str, *, zero: bool = True) -> float:
    """Returns a time in seconds; `math.inf` becomes ten years."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} has to be a number of seconds, not {shown(value)}")
    given = float(value)
    if math.isnan(given) or given < 0 or (given == 0 and not zero):
        least = "zero or more" if zero else "more than zero"
        raise ValueError(f"{name} has to be {least} seconds, not {given:g}")
    return min(given, _FOR_EVER)


def share(value: object, name: str) -> float:
    """Returns a part of a whole: more than 0, at most 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} has to be a number from 0 to 1, not {shown(value)}")
    if not 0 < float(value) <= 1:
        raise ValueError(f"{name} has to be more than 0 and at most 1, not {float(value):g}")
    return float(value)


def flag(value: object, name: str) -> bool:
    """Returns True or False, also from numpy's."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError(f"{name} has to be True or False, not {shown(value)}")


def choice(value: object, name: str, options: Sequence[T]) -> T:
    """Returns one of some names."""
    if not isinstance(value, str):
        raise TypeError(f"{name} has to be one of {_listed(options)}, not {shown(value)}")
    for option in options:
        if value == option:
            return option
    raise ValueError(
        f'{name} "{value}" is unknown{nearest(value, options)}; it is one of {_listed(options)}'
    )


def function(value: object, name: str, called_with: str) -> Callable[..., Any] | None:
    """Returns a function, or None."""
    if value is None or callable(value):
        return value
    raise TypeError(
        f"{name} has to be a function that is called with {called_with}, not {shown(value)}"
    )


def path(value: object, name: str) -> str:
    """Returns a path as text, with `~` expanded."""
    if isinstance(value, str | bytes | os.PathLike):
        text = os.fsdecode(value)
        if text == "":
            raise ValueError(f"{name} is empty; name a file or a directory")
        url = _URL.match(text)
        if url:
            raise ValueError(
                f"{name} {text} is not a path: belady reads files, and not {url[1]} itself. Mount "
                "it as a file system (mountpoint-s3, gcsfuse, rclone mount), or copy it, and name "
                "that directory"
            )
        return os.path.expanduser(text)
    raise TypeError(f"{name} has to be a path, not {shown(value)}")


def weights(value: object, name: str) -> list[float]:
    """Returns numbers that are not negative, at least one of them above zero."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} has to be a list of numbers, not {shown(value)}")
    # An array converts its numbers much faster all at once.
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, Iterable):
        raise TypeError(f"{name} has to be a list of numbers, not {shown(value)}")
    given = []
    for position, item in enumerate(listed):
        try:
            weight = float(item)
        except (TypeError, ValueError):
            raise TypeError(f"{name}[{position}] has to be a number, not {shown(item)}") from None
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"{name}[{position}] has to be zero or more, not {weight:g}")
        given.append(weight)
    if not any(given):
        raise ValueError(f"{name} needs at least one number above zero")
    return given


def no_unknown(unknown: dict[str, Any], of: str, known: Iterable[str]) -> None:
    """Raises for an unknown argument, and names the one that was perhaps meant."""
    for name in unknown:
        raise TypeError(f"{of} has no argument {name}{nearest(name, known)}")


def nearest(name: str, options: Iterable[str]) -> str:
    """Returns ", did you mean x?" if an option is similar."""
    found = difflib.get_close_matches(name, list(options), n=1)
    return f", did you mean {found[0]}?" if found else ""


def tiers(value: object, name: str = "cache", *, local_ranks: int = 1) -> list[Tier]:
    """Returns cache tiers, fastest first, from "ram:40GiB", "/local/nvme:500GiB" or pairs.

    Quotas are for the whole node; each of `local_ranks` processes gets its part.
    """
    given: list[object]
    if isinstance(value, str) or _is_pair(value):
        given = [value]
    elif isinstance(value, Iterable):
        given = list(value)
    else:
        raise TypeError(
            f'{name} has to be a list such as ["ram:40GiB", "/local/nvme:500GiB"], '
            f"not {shown(value)}"
        )
    found = [_tier(item, f"{name}[{position}]") for position, item in enumerate(given)]
    _refuse_duplicates(found, name)
    _warn_of_new_directories(found, name)
    _refuse_beyond_limit(found, name)
    return [(directory, quota // local_ranks) for directory, quota in found]


def default_tiers(dataset_bytes: int, local_ranks: int) -> list[Tier]:
    """Returns the cache of a loader without `cache`: a quarter of the free memory.

    The training program, which often has not taken its memory yet, keeps three quarters. Disks are
    used only when they are named.
    """
    quota = min(dataset_bytes, memory.available() // 4 // local_ranks)
    return [(None, quota)] if quota else []


def _tier(value: object, name: str) -> Tier:
    if _is_pair(value):
        place, quota = value  # type: ignore[misc]
    elif isinstance(value, str):
        place, colon, quota = value.rpartition(":")
        if not colon or not place or "/" in quota:
            raise ValueError(
                f'{name}: "{value}" has no quota; write ram:SIZE or DIRECTORY:SIZE, '
                "for example ram:40GiB or /local/nvme:500GiB"
            )
    else:
        raise TypeError(
            f"{name} has to be text such as ram:40GiB or /local/nvme:500GiB, not {shown(value)}"
        )
    bytes_ = size(quota, name)
    if bytes_ == 0:
        raise ValueError(f"{name} has a quota of zero; leave it out, or make it larger")
    directory = path(place, name)
    return (None if directory.lower() == "ram" else directory, bytes_)


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and not isinstance(value[1], tuple)
        and not (isinstance(value[1], str) and ":" in value[1])
    )


def _refuse_duplicates(found: list[Tier], name: str) -> None:
    places = ["ram" if place is None else os.path.abspath(place) for place, _ in found]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"{name} names {place} twice; give it one quota")


def _warn_of_new_directories(found: list[Tier], name: str) -> None:
    """Warns of directories that are created: one may be mistyped, on another disk."""
    for place, _ in found:
        if place is not None and not os.path.isdir(place):
            log.warning("%s: directory %s does not exist and is created", name, place)


def _refuse_beyond_limit(found: list[Tier], name: str) -> None:
    ram = sum(quota for place, quota in found if place is None)
    limit, total = memory.limit(), memory.total()
    if limit is not None and ram > limit:
        raise ValueError(
            f"{name} asks for {_native.format_size(ram)} of RAM, but this process's control group "
            f"may use {_native.format_size(limit)}; ask for less, or raise the container's limit"
        )
    if total and ram > total:
        raise ValueError(
            f"{name} asks for {_native.format_size(ram)} of RAM, but this machine has "
            f"{_native.format_size(total)}; ask for less, or put the rest on a disk"
        )


def shown(value: object) -> str:
    """Returns a value and its type for messages."""
    text = repr(value)
    short = text if len(text) <= 40 else text[:37] + "..."
    return f"{short} ({type(value).__name__})"


def _listed(options: Sequence[str]) -> str:
    return ", ".join(options[:-1]) + " or " + options[-1]
