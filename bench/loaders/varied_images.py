"""Pictures whose sizes differ as ImageNet's: python varied_images.py FOLDER COUNT

Each is a part of a large picture, so a byte costs a decoder about the same in all of them.
"""

import io
import sys
from pathlib import Path

import numpy
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from photographs import HEIGHT, QUALITY, WIDTH, picture

# N(μ/4, 9μ/8) cut at 0 has σ/μ = 0.7.
MEAN = 40_000
# Of a picture of WIDTH × HEIGHT.
WHOLE = 110_000
# Smaller ones are no pictures.
LEAST_BYTES = 2_000
DIFFERENT = 400
# Pictures that the parts are cut from, and how many lie beside and above each other in each.
LARGE, SIDE = 6, 2
SEED = 7


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    done = folder / "done"
    if done.exists() and done.read_text() == str(count):
        return
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.iterdir():
        old.unlink()
    # A few pictures, again and again: what counts is what they cost.
    made = parts(numpy.random.default_rng(SEED))
    for number in range(count):
        (pictures / f"{number:06}.jpg").write_bytes(made[number % DIFFERENT])
    done.write_text(str(count))


def parts(draw):
    """Encoded parts, in no order of their sizes."""
    large = [mosaic(number * SIDE**2) for number in range(LARGE)]
    files = []
    while len(files) < DIFFERENT:
        wanted = draw.normal(MEAN / 4, MEAN * 9 / 8)
        if wanted < LEAST_BYTES:
            continue
        share = min((wanted / WHOLE) ** 0.5, SIDE)
        width, height = round(share * WIDTH), round(share * HEIGHT)
        left = int(draw.integers(0, SIDE * WIDTH - width + 1))
        top = int(draw.integers(0, SIDE * HEIGHT - height + 1))
        part = large[len(files) % LARGE].crop((left, top, left + width, top + height))
        file = io.BytesIO()
        part.save(file, "JPEG", quality=QUALITY)
        files.append(file.getvalue())
    return files


def mosaic(first):
    """Pictures beside and above each other."""
    whole = Image.new("RGB", (SIDE * WIDTH, SIDE * HEIGHT))
    for at in range(SIDE**2):
        whole.paste(picture(first + at), (at % SIDE * WIDTH, at // SIDE * HEIGHT))
    return whole


if __name__ == "__main__":
    main()
