"""Writes records as MosaicML streaming takes them: python mds.py FOLDER OUT --size 1000"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from streaming import MDSWriter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, required=True)
    args = parser.parse_args()
    if args.out.exists():
        return
    made = args.out.with_suffix(".part")
    shutil.rmtree(made, ignore_errors=True)
    with MDSWriter(out=str(made), columns={"data": "bytes"}) as writer:
        for path in sorted(args.folder.iterdir()):
            data = path.read_bytes()
            for offset in range(0, len(data), args.size):
                writer.write({"data": data[offset : offset + args.size]})
    made.rename(args.out)


if __name__ == "__main__":
    main()
