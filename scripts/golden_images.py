"""Makes small image files of every kind, and what Pillow decodes them to.

Needs Pillow and NumPy. Writes crates/transform/tests/golden/images: each file beside a `.bin` with the
bytes of `convert("RGB")`, of `convert("L")`, and, where the file is to be turned, of `exif_transpose`
and `convert("RGB")`. Files that Pillow refuses have no `.bin`. The tests compare; fuzz/seeds.py makes a
corpus of them.
"""

import io
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent.parent / "crates/transform/tests/golden/images"
SIZE = (19, 13)

# Pillow does not miss the end of a PNG, as it does that of a JPEG. We refuse both.
CUT_OFF = {"no-end.png"}


def photo(size=SIZE, channels=3, seed=0) -> np.ndarray:
    """Smooth colours with some noise, as photographs are."""
    width, height = size
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + c) + c) + np.cos(y / (4 - 0.5 * c)) for c in range(channels)]
    noise = rng.normal(scale=9, size=(height, width, channels))
    return np.clip(np.stack(waves, -1) * 60 + 128 + noise, 0, 255).astype("u1")


RGB = Image.fromarray(photo())
RGBA = Image.fromarray(photo(channels=4))
GREY = RGB.convert("L")
CMYK = Image.fromarray(photo(channels=4), "CMYK")
PALETTE = RGB.quantize(37)


def exif(number: int) -> bytes:
    data = Image.Exif()
    data[0x0112] = number
    return data.tobytes()


def save(image: Image.Image, kind: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def jpegs():
    for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
        yield f"{name}.jpg", save(RGB, "JPEG", quality=90, subsampling=sampling)
    yield "progressive.jpg", save(RGB, "JPEG", progressive=True)
    yield "optimised.jpg", save(RGB, "JPEG", optimize=True, quality=40)
    yield "restarts.jpg", save(RGB, "JPEG", restart_marker_blocks=1)
    yield "rgb.jpg", save(RGB, "JPEG", keep_rgb=True)
    yield "grey.jpg", save(GREY, "JPEG")
    yield "cmyk.jpg", save(CMYK, "JPEG")
    yield "one-pixel.jpg", save(RGB.crop((0, 0, 1, 1)), "JPEG")
    for number in range(1, 9):
        yield f"exif-{number}.jpg", save(RGB, "JPEG", exif=exif(number))
    whole = save(RGB, "JPEG")
    # YCCK is what four channels are with Adobe's mark of a transformation.
    cmyk = save(CMYK, "JPEG")
    adobe = cmyk.find(b"Adobe")
    yield "ycck.jpg", cmyk[: adobe + 11] + b"\2" + cmyk[adobe + 12 :]
    yield "trailing.jpg", whole + b"something else"
    yield "padded-marker.jpg", whole[:2] + b"\xff\xff" + whole[2:]
    flipped = bytearray(whole)
    flipped[-60] ^= 0x55
    yield "damaged-data.jpg", bytes(flipped)
    yield "cut.jpg", whole[: len(whole) - 40]
    yield "no-end.jpg", whole[:-2]
    yield "header-only.jpg", whole[:200]
    frame = whole.find(b"\xff\xc0")
    huge = whole[: frame + 5] + b"\xff\xff\xff\xff" + whole[frame + 9 :]
    yield "gigantic.jpg", huge
    yield "twelve-bits.jpg", whole[: frame + 4] + b"\x0c" + whole[frame + 5 :]
    yield "no-height.jpg", whole[: frame + 5] + b"\0\0" + whole[frame + 7 :]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *between: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [
        chunk(b"IHDR", header),
        *between,
        chunk(b"IDAT", zlib.compress(rows)),
        chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def pngs():
    yield "rgb.png", save(RGB, "PNG")
    yield "rgba.png", save(RGBA, "PNG")
    yield "grey.png", save(GREY, "PNG")
    yield "grey-alpha.png", save(RGBA.convert("LA"), "PNG")
    yield "bilevel.png", save(GREY.convert("1"), "PNG")
    yield "palette.png", save(PALETTE, "PNG")
    yield "palette-4.png", save(RGB.quantize(11), "PNG")
    yield "palette-transparent.png", save(PALETTE, "PNG", transparency=bytes(range(0, 250, 25)))
    yield "rgb-transparent.png", save(RGB, "PNG", transparency=RGB.getpixel((3, 3)))
    yield "grey-transparent.png", save(GREY, "PNG", transparency=GREY.getpixel((3, 3)))
    for number in (3, 6):
        yield f"exif-{number}.png", save(RGB, "PNG", exif=exif(number))
    rng = np.random.default_rng(7)
    width, height = SIZE

    def rows(channels: int, bits: int) -> bytes:
        row = (width * channels * bits + 7) // 8
        return b"".join(b"\0" + rng.bytes(row) for _ in range(height))

    for name, colour, channels in (
        ("rgb", 2, 3),
        ("rgba", 6, 4),
        ("grey", 0, 1),
        ("grey-alpha", 4, 2),
    ):
        yield f"{name}-16.png", png(width, height, 16, colour, rows(channels, 16))
    for bits in (1, 2, 4):
        yield f"grey-{bits}.png", png(width, height, bits, 0, rows(1, bits))
    yield "interlaced.png", interlaced()
    whole = save(RGB, "PNG")
    yield "png-called.jpg", whole
    yield "cut.png", whole[: len(whole) // 2]
    yield "no-end.png", whole[:-12]
    yield "gigantic.png", png(100_000, 100_000, 8, 2, b"")
    yield "no-pixels.png", png(0, 5, 8, 2, b"")
    yield "exif-after.png", whole[:-12] + chunk(b"eXIf", exif(8)[6:]) + whole[-12:]


def interlaced() -> bytes:
    """Pillow does not write Adam7, so it is made here."""
    pixels = photo()
    height, width, _ = pixels.shape
    rows = b""
    passes = (
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    )
    for x, y, step_x, step_y in passes:
        for row in pixels[y::step_y, x::step_x]:
            rows += b"\0" + row.tobytes() if len(row) else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def webps():
    yield "lossy.webp", save(RGB, "WEBP", quality=80)
    yield "lossy-large.webp", save(Image.fromarray(photo((67, 45))), "WEBP", quality=50)
    yield "lossy-alpha.webp", save(RGBA, "WEBP", quality=80)
    yield "lossless.webp", save(RGB, "WEBP", lossless=True)
    yield "lossless-alpha.webp", save(RGBA, "WEBP", lossless=True, exact=True)
    yield "exif-6.webp", save(RGB, "WEBP", lossless=True, exif=exif(6))
    frames = [Image.fromarray(photo(channels=4, seed=seed)) for seed in range(3)]
    for name, lossless in (("animated", True), ("animated-lossy", False)):
        yield (
            f"{name}.webp",
            save(
                frames[0],
                "WEBP",
                lossless=lossless,
                exact=True,
                save_all=True,
                append_images=frames[1:],
            ),
        )
    yield "animated-part.webp", animated_part()
    whole = save(RGB, "WEBP", lossless=True)
    yield "cut.webp", whole[: len(whole) // 2]
    yield "cut-lossy.webp", save(RGB, "WEBP")[:-30]
    yield "header-only.webp", whole[:12]


def animated_part() -> bytes:
    """A first frame that covers only a part of the canvas."""
    still = save(RGBA.crop((0, 0, 9, 7)), "WEBP", lossless=True, exact=True)
    at = still.find(b"VP8L")
    body = still[at:]

    def three(number: int) -> bytes:
        return number.to_bytes(3, "little")

    def riff(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    frame = three(2) + three(1) + three(8) + three(6) + three(100) + b"\0" + body
    extended = b"\x12\0\0\0" + three(SIZE[0] - 1) + three(SIZE[1] - 1)
    rest = riff(b"VP8X", extended) + riff(b"ANIM", b"\x40\x80\xc0\xff\0\0") + riff(b"ANMF", frame)
    return b"RIFF" + struct.pack("<I", len(rest) + 4) + b"WEBP" + rest


def bitmap(
    bits: int,
    data: bytes,
    *,
    compression=0,
    palette=b"",
    colours=0,
    masks=b"",
    top_down=False,
    header_size=40,
) -> bytes:
    width, height = SIZE
    if header_size == 12:
        header = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        signed = -height if top_down else height
        header = struct.pack(
            "<IiiHHIIiiII",
            header_size,
            width,
            signed,
            1,
            bits,
            compression,
            len(data),
            0,
            0,
            colours,
            0,
        )
        header += masks[: header_size - 40].ljust(header_size - 40, b"\0")
        masks = masks if header_size == 40 else b""
    start = 14 + len(header) + len(masks) + len(palette)
    return (
        b"BM"
        + struct.pack("<IHHI", start + len(data), 0, 0, start)
        + header
        + masks
        + palette
        + data
    )


def bmps():
    for name, image in (
        ("rgb", RGB),
        ("grey", GREY),
        ("bilevel", GREY.convert("1")),
        ("palette", PALETTE),
        ("rgba", RGBA),
    ):
        yield f"{name}.bmp", save(image, "BMP")
    rng = np.random.default_rng(9)
    width, height = SIZE

    def rows(bits: int) -> bytes:
        return rng.bytes(((width * bits + 31) // 32 * 4) * height)

    yield "15-bits.bmp", bitmap(16, rows(16))
    green = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    yield "16-bits.bmp", bitmap(16, rows(16), compression=3, masks=green)
    yield "32-bits.bmp", bitmap(32, rows(32))
    for at, masks in enumerate(
        [
            (0xFF000000, 0xFF0000, 0xFF00, 0),
            (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
            (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
            (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
            (0xFF000000, 0xFF00, 0xFF, 0),
            (0, 0, 0, 0),
        ]
    ):
        yield (
            f"masks-{at}.bmp",
            bitmap(32, rows(32), compression=3, masks=struct.pack("<IIII", *masks), header_size=56),
        )
    colours = rng.bytes(16 * 4)
    yield "4-bits.bmp", bitmap(4, rows(4), palette=colours, colours=16)
    yield "top-down.bmp", bitmap(24, rows(24), top_down=True)
    yield "os2.bmp", bitmap(8, rows(8), palette=rng.bytes(256 * 3), header_size=12)
    yield "short-palette.bmp", bitmap(8, rows(8), palette=rng.bytes(100 * 4), colours=100)
    palette = rng.bytes(256 * 4)
    run = b"".join(
        bytes([5, at, 0, 6, 1, 2, 3, 4, 5, at, 200, 7, 0, 0]) if at % 3 else b"\0\2\x04\1"
        for at in range(height)
    )
    yield "rle8.bmp", bitmap(8, run + b"\0\1", compression=1, palette=palette)
    full = b"".join(bytes([width, at * 9 % 256, 0, 0]) for at in range(height))
    yield "rle8-full.bmp", bitmap(8, full + b"\0\1", compression=1, palette=palette)
    mixed = b"".join(
        bytes([7, 0x1F, 0, 5, 0x12, 0x34, 0x50, 0, 7, at, 0, 0]) for at in range(height)
    )
    yield "rle4.bmp", bitmap(4, mixed + b"\0\1", compression=2, palette=colours, colours=16)
    yield "cut.bmp", save(RGB, "BMP")[:-100]
    yield "cut-rle8.bmp", bitmap(8, full[:30], compression=1, palette=palette)
    whole = save(RGB, "BMP")
    yield "gigantic.bmp", whole[:18] + struct.pack("<ii", 2**30, 2**30) + whole[26:]
    yield (
        "strange-masks.bmp",
        bitmap(32, rows(32), compression=3, masks=struct.pack("<III", 7, 56, 64)),
    )


def gifs():
    yield "palette.gif", save(PALETTE, "GIF")
    yield "grey.gif", save(GREY, "GIF")
    yield "interlaced.gif", save(PALETTE, "GIF", interlace=True)
    yield "transparent.gif", save(PALETTE, "GIF", transparency=5)
    frames = [Image.fromarray(photo(seed=seed)).quantize(20) for seed in range(3)]
    yield "animated.gif", save(frames[0], "GIF", save_all=True, append_images=frames[1:], loop=0)
    part = moved(save(PALETTE.crop((0, 0, 9, 7)), "GIF", interlace=False), 4, 3)
    yield "part.gif", part
    yield (
        "part-transparent.gif",
        moved(save(PALETTE.crop((0, 0, 9, 7)), "GIF", interlace=False, transparency=5), 4, 3),
    )
    # The frame reaches beyond the screen, which grows.
    yield "beyond.gif", moved(save(PALETTE, "GIF", interlace=False), 4, 3)
    yield "cut.gif", part[: len(part) - 20]
    yield "no-image.gif", part[: part.find(b",")] + b";"
    yield "four-colours.gif", save(RGB.quantize(4), "GIF")


def moved(data: bytes, left: int, top: int) -> bytes:
    """The same with the first frame elsewhere on a screen of the usual size."""
    data = bytearray(data)
    data[6:10] = struct.pack("<HH", *SIZE)
    # The descriptor comes after the colours and perhaps an extension.
    at = 13 + (3 << (data[10] & 7) + 1)
    while data[at] == 0x21:
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    data[at + 1 : at + 5] = struct.pack("<HH", left, top)
    return bytes(data)


def expected(data: bytes) -> bytes:
    image = Image.open(io.BytesIO(data))
    if image.mode.startswith("I;16"):
        # Pillow makes all but the darkest of 16 bits white. We take the upper eight, as it does for RGB.
        image = Image.fromarray((np.asarray(image) >> 8).astype("u1"))
    turned = image.getexif().get(0x0112, 1) != 1
    parts = [image.convert("RGB").tobytes(), image.convert("L").tobytes()]
    if turned:
        parts.append(ImageOps.exif_transpose(image).convert("RGB").tobytes())
    return b"".join(parts)


def main() -> None:
    HERE.mkdir(parents=True, exist_ok=True)
    for old in HERE.iterdir():
        old.unlink()
    for kind in (jpegs, pngs, webps, bmps, gifs):
        for name, data in kind():
            (HERE / name).write_bytes(data)
            if name in CUT_OFF:
                continue
            try:
                (HERE / f"{name}.bin").write_bytes(expected(data))
            except Exception as error:
                print(f"{name}: Pillow refuses it: {error}")


if __name__ == "__main__":
    main()
