"""Pictures in the order in which they are to be read: python shift_images.py FOLDER COUNT

FOLDER/even has pictures that cost about the same. In FOLDER/dear the middle third costs three times as
much processor time to transform, and has about as many bytes: the same pictures, enlarged, and compressed
more.
"""

import io
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from photographs import HEIGHT, QUALITY, WIDTH, picture

DIFFERENT = 40
# Found by trying: a picture of eight times the pixels, compressed so much, has the bytes of the small one and
# takes three times as long; bench/harness/shift.py measures both.
PIXELS, DEAR_QUALITY = 8, 15


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    done = folder / "done"
    if done.exists() and done.read_text() == f"{count} {PIXELS} {DEAR_QUALITY}":
        return
    even, dear = (kinds(folder, is_dear) for is_dear in (False, True))
    for name in ("even", "dear"):
        pictures = folder / name
        pictures.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            in_third = count // 3 <= number < 2 * count // 3
            of = dear if name == "dear" and in_third else even
            # A few pictures, again and again: what counts is what they cost.
            at = pictures / f"{number:06}.jpg"
            at.unlink(missing_ok=True)
            os.link(of[number % DIFFERENT], at)
    done.write_text(f"{count} {PIXELS} {DEAR_QUALITY}")


def kinds(folder, is_dear):
    """The different pictures, each in a file of FOLDER/kinds."""
    folder = folder / "kinds" / ("dear" if is_dear else "even")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(DIFFERENT):
        made = picture(number)
        if is_dear:
            made = made.resize((round(WIDTH * PIXELS**0.5), round(HEIGHT * PIXELS**0.5)))
        file = io.BytesIO()
        made.save(file, "JPEG", quality=DEAR_QUALITY if is_dear else QUALITY)
        files.append(folder / f"{number:06}.jpg")
        files[-1].write_bytes(file.getvalue())
    return files


if __name__ == "__main__":
    main()
