"""A policy with its options."""

from __future__ import annotations

import numbers

from .. import _native
from . import arguments

#: What an option can be: a number for a duration is seconds.
Option = bool | int | float | str


class Policy:
    """Decides what is cached where, and how threads are divided: `DataLoader(policy=...)`.

    >>> belady.Policy("lobster", tau=0.005, eviction=False)
    Policy('lobster,eviction=false,tau=0.005s')

    Options and their defaults are those of `[[policy]]` in scenario files. Durations are numbers of
    seconds, or text such as "5ms". The text that is shown is one that `DataLoader(policy=...)` and
    `belady read --policy` take too.
    """

    __slots__ = ("_text",)

    def __init__(self, name: str, /, **options: Option) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a policy's name has to be text, not {arguments.shown(name)}")
        text = ",".join([name, *(f"{key}={_written(key, options[key])}" for key in options)])
        #: The name, and the options that are not as by default.
        self._text = _native.policy(text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Policy({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Policy], tuple[str]]:
        return Policy, (self._text,)


def _written(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Real | str):
        return str(value)
    raise TypeError(
        f"option {name} of a policy has to be True, False, a number or text, "
        f"not {arguments.shown(value)}"
    )


def policy(value: object) -> str:
    """Returns the policy as text: its name, and the options that are not as by default."""
    if isinstance(value, Policy):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(
            'policy has to be text such as "belady" or a belady.Policy, '
            f"not {arguments.shown(value)}"
        )
    try:
        return _native.policy(value)
    except ValueError as error:
        raise ValueError(f"policy: {error}") from None
