"""Rules that the package takes from the native module, so that each exists once."""

from __future__ import annotations

import pytest

from belady import _native


@pytest.mark.parametrize(
    ("text", "size"),
    [("12", 12), ("3 MB", 3_000_000), ("40GiB", 40 << 30), ("0.5KiB", 512), ("1PB", 10**15)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert _native.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 XB", "4 GiB/s"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        _native.parse_size(text)


def test_a_shown_size_is_one_that_can_be_read() -> None:
    for size in (0, 1, 999, 1000, 1_500_000, 40 * 10**9, 7 * 10**15):
        assert _native.parse_size(_native.format_size(size)) == size


def test_policies_and_schemes_are_those_that_the_engine_runs() -> None:
    assert "belady" in _native.POLICIES
    assert "perfect" not in _native.POLICIES, "only the simulator runs it"
    assert _native.SCHEMES[:2] == ["uniform", "parts"]
    for scheme in _native.SCHEMES:
        _native.Orders.distributed(samples=8, batch=2, scheme=scheme)


def test_the_same_policy_is_the_same_text() -> None:
    assert _native.policy("lobster, tau = 1ms") == "lobster", "as by default"
    assert _native.policy("lobster,tau=5ms") == _native.policy("lobster,tau=0.005")
    with pytest.raises(ValueError, match="`perfect` exists in the simulator only"):
        _native.policy("perfect")


def test_a_launcher_gives_the_place_in_the_job_and_on_the_node() -> None:
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert _native.launcher(torchrun) == (5, 8, 1, 4)
    assert _native.launcher({}) is None
    with pytest.raises(ValueError, match="RANK is set but WORLD_SIZE is not"):
        _native.launcher({"RANK": "5"})


def test_without_an_environment_the_launcher_of_this_process_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _native.launcher() is None
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert _native.launcher() == (1, 2, 1, 2)
