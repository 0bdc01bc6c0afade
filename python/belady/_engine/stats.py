"""Figures as a dict that prints as a table."""

from __future__ import annotations

from typing import Any


class Stats(dict[str, Any]):
    """A dict of figures; `str()` and `.table()` show it as a table.

    >>> print(Stats(samples=1200, source={"bytes": 5}, waited_seconds=0.5))
    samples         1,200
    source.bytes    5
    waited_seconds  0.5
    """

    def table(self) -> str:
        """Returns one line for each value."""
        rows = list(_rows(self))
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    __str__ = table

    def flat(self) -> dict[str, float]:
        """Returns the numbers, names joined by dots: for TensorBoard's `add_scalars` and tqdm."""
        return {
            name: value
            for name, value in _leaves(self)
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


def _rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, _shown(value)) for name, value in _leaves(values)]


def _leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        # Buckets of histograms are for Prometheus; a table shows their count, sum and maximum.
        items: Any = [(key, item) for key, item in value.items() if key != "buckets"]
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        items = enumerate(value)
    else:
        return [(name, value)]
    return [
        leaf for key, item in items for leaf in _leaves(item, f"{name}.{key}" if name else str(key))
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
