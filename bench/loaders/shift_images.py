"""Pictures of which the middle third costs three times as much to decode: python shift_images.py FOLDER COUNT

The names sort in the order in which they are to be read. A dear picture has three times the pixels of a
cheap one, and about as many bytes: it is the same picture, enlarged, and compressed more.
"""

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from photographs import HEIGHT, QUALITY, WIDTH, picture

TIMES = 3
DIFFERENT = 40
# Compressed so much, the enlarged picture has about the bytes of the small one.
DEAR_QUALITY = 75


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    done = folder / "done"
    if done.exists() and done.read_text() == str(count):
        return
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    # A few pictures, again and again: what counts is what they cost.
    kinds = [encoded(is_dear) for is_dear in (False, True)]
    for number in range(count):
        is_dear = count // 3 <= number < 2 * count // 3
        made = kinds[is_dear][number % DIFFERENT]
        (pictures / f"{number:06}.jpg").write_bytes(made)
    done.write_text(str(count))


def encoded(is_dear):
    size = (round(WIDTH * TIMES**0.5), round(HEIGHT * TIMES**0.5))
    files = []
    for number in range(DIFFERENT):
        made = picture(number)
        file = io.BytesIO()
        if is_dear:
            made = made.resize(size)
        made.save(file, "JPEG", quality=DEAR_QUALITY if is_dear else QUALITY)
        files.append(file.getvalue())
    return files


if __name__ == "__main__":
    main()
