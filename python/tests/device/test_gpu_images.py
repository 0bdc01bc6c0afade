"""Files that are handed to a GPU. What needs a GPU is in test_device.py."""

from __future__ import annotations

import torch

from belady.device.gpu_images import Files

NOTHING = torch.empty(0, dtype=torch.uint8)


def test_a_batch_of_which_the_gpu_gets_nothing_has_no_files() -> None:
    assert Files(NOTHING, [], []).spans() == []


def test_files_lie_one_after_the_other() -> None:
    assert Files(NOTHING, [3, 4, 9], [(1, 1)] * 3).spans() == [(0, 3), (3, 4), (4, 9)]
