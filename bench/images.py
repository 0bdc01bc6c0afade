#!/usr/bin/env python3
"""ImageNet's training transform, from JPEG files to batches of tensors, beside other loaders.

    make bench                                      # builds and installs what it measures
    python3 bench/images.py --only images --runs 3  # one section
    python3 bench/images.py --write-docs            # and puts the tables into bench/METHODS.md

Loaders run in fresh processes, in turns, in an environment of their own (`make
bench-environment`). A loader that cannot be installed is left out and named. It needs a quiet
machine. A missed target is printed and is no failure; the exit status says only
whether the commands ran.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import images, images_memory
from harness.python_context import PythonContext
from harness.sections import Harness

SECTIONS = {
    "images": images.speed,
    "images-memory": images_memory.peak,
    "images-growth": images_memory.growth,
}

if __name__ == "__main__":
    Harness("images.py", __doc__.split("\n\n")[0], SECTIONS, PythonContext).main()
