#!/usr/bin/env python3
"""Asks a real torchvision for the pixels that belady-transform must reproduce.

    python scripts/golden_pixels.py            # writes crates/transform/tests/golden/pixels.json
    python scripts/golden_pixels.py --check    # says whether they would change

Images are made by a formula that the tests know too, so that only results are kept. Needs
torchvision; deterministic. Where Pillow can do the same, its result stands beside.
"""

import argparse
import base64
import json
import pathlib
import sys

import numpy
import PIL.Image
import torch
import torchvision
from torchvision.transforms.v2 import InterpolationMode, functional

GOLDEN = (
    pathlib.Path(__file__).resolve().parent.parent / "crates/transform/tests/golden/pixels.json"
)
INTERPOLATIONS = {
    "nearest": InterpolationMode.NEAREST,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def image(width, height, channels):
    """Smooth colours with noise and some hard edges: HWC, as the tests' `image` makes it."""
    y, x, c = numpy.mgrid[0:height, 0:width, 0:channels].astype(numpy.uint32)
    place = (y * numpy.uint32(width) + x) * numpy.uint32(channels) + c
    noise = (place * numpy.uint32(2654435761)) >> numpy.uint32(26)
    smooth = x * numpy.uint32(3) + y * (c + numpy.uint32(1)) + c * numpy.uint32(40)
    edge = numpy.where((x // 7 + y // 5) % 3 == 0, numpy.uint32(128), numpy.uint32(0))
    return ((smooth + noise + edge) % 256).astype(numpy.uint8)


def tensor(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def packed(tensor):
    """HWC bytes, in base64."""
    return base64.b64encode(tensor.permute(1, 2, 0).contiguous().numpy().tobytes()).decode()


def pillow_resized(pixels, part, width, height):
    left, top, w, h = part
    cut = pixels[top : top + h, left : left + w]
    channels = cut.shape[2]
    picture = PIL.Image.fromarray(cut[:, :, 0] if channels == 1 else cut)
    resized = numpy.asarray(picture.resize((width, height), PIL.Image.Resampling.BILINEAR))
    return base64.b64encode(resized.tobytes()).decode()


def resizes():
    # (width, height, channels), part (left, top, width, height), (width, height) of the result
    cases = [
        ((61, 47, 3), (0, 0, 61, 47), (22, 18)),
        ((61, 47, 3), (5, 3, 33, 40), (20, 13)),
        ((61, 47, 3), (20, 30, 41, 17), (19, 20)),
        ((40, 30, 3), (3, 2, 9, 7), (17, 16)),
        ((40, 30, 3), (39, 29, 1, 1), (5, 3)),
        ((200, 150, 3), (0, 0, 200, 150), (13, 11)),
        ((40, 30, 3), (1, 1, 24, 20), (24, 9)),
        ((40, 30, 3), (1, 1, 24, 20), (11, 20)),
        ((61, 47, 1), (5, 3, 50, 40), (21, 17)),
        ((61, 47, 4), (5, 3, 50, 40), (15, 13)),
    ]
    for shape, part, (width, height) in cases:
        pixels = image(*shape)
        left, top, w, h = part
        for name, interpolation in INTERPOLATIONS.items():
            for antialias in [True, False] if name != "nearest" else [True]:
                result = functional.resized_crop(
                    tensor(pixels), top, left, h, w, [height, width], interpolation, antialias
                )
                case = {
                    "image": shape,
                    "part": part,
                    "size": [width, height],
                    "interpolation": name,
                    "antialias": antialias,
                    "torch": packed(result),
                }
                # Bilinear alone: Pillow's nearest takes the middle of a pixel, and its bicubic does
                # rows or columns first as it likes, which shows where colours are cut off.
                if antialias and shape[2] != 4 and name == "bilinear":
                    case["pillow"] = pillow_resized(pixels, part, width, height)
                yield case


def pads():
    for padding, fill, mode in [
        ([2, 3, 4, 1], [7], "constant"),
        ([2, 0, 0, 1], [1, 200, 30], "constant"),
        ([9, 20, 4, 1], [0], "edge"),
        ([8, 6, 4, 1], [0], "reflect"),
        ([9, 7, 4, 7], [0], "symmetric"),
    ]:
        result = functional.pad(tensor(image(9, 7, 3)), padding, fill, mode)
        yield {"padding": padding, "fill": fill, "mode": mode, "torch": packed(result)}


def colours():
    pixels = tensor(image(17, 11, 3))
    for name, factors in {
        "brightness": [0.0, 0.61, 1.0, 1.37],
        "contrast": [0.0, 0.61, 1.0, 1.37],
        "saturation": [0.0, 0.61, 1.0, 1.37],
        "hue": [-0.5, -0.17, 0.0, 0.083, 0.5],
    }.items():
        for factor in factors:
            result = getattr(functional, f"adjust_{name}")(pixels, factor)
            yield {"name": name, "factor": factor, "torch": packed(result)}


def tensors():
    """What the 256 bytes become."""
    ramp = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).expand(3, 16, 16)
    for name in ["float32", "float16", "bfloat16"]:
        dtype = getattr(torch, name)
        plain = functional.to_dtype(ramp, dtype, scale=True)
        for normalized in [False, True]:
            result = functional.normalize(plain, MEAN, STD) if normalized else plain
            raw = result.contiguous().view(torch.uint8).numpy().tobytes()
            yield {
                "dtype": name,
                "mean": MEAN if normalized else None,
                "std": STD if normalized else None,
                "torch": base64.b64encode(raw).decode(),
            }


def golden():
    return {
        "torchvision": torchvision.__version__.split("+")[0],
        "pillow": PIL.__version__,
        "resizes": list(resizes()),
        "pads": list(pads()),
        "colours": list(colours()),
        "tensors": list(tensors()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if they changed")
    check = parser.parse_args().check
    text = json.dumps(golden(), indent=0) + "\n"
    if check:
        old = GOLDEN.read_text() if GOLDEN.exists() else ""
        sys.exit(0 if old == text else f"{GOLDEN.name} would change")
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(text)
    print(f"{GOLDEN.name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
