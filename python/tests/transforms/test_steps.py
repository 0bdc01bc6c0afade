"""Steps as people write them: checked where they are written, compared, printed, sent."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

import belady
from belady import transforms as T

#: A step, as it prints, and its arguments for the native module.
STEPS: list[tuple[Any, str, dict[str, Any]]] = [
    (
        T.Decode(),
        "Decode()",
        {
            "mode": "RGB",
            "apply_exif_orientation": False,
            "max_pixels": 178956970,
            "dct_scaling": False,
        },
    ),
    (
        T.Decode("GRAY", True, max_pixels=100),
        "Decode(mode='GRAY', apply_exif_orientation=True, max_pixels=100)",
        {"mode": "GRAY", "apply_exif_orientation": True, "max_pixels": 100, "dct_scaling": False},
    ),
    (
        T.Resize(256),
        "Resize(256)",
        {"size": [256], "interpolation": "bilinear", "max_size": None, "antialias": True},
    ),
    (
        T.Resize([20, 30], InterpolationMode.BICUBIC, antialias=False),
        "Resize((20, 30), interpolation='bicubic', antialias=False)",
        {"size": [20, 30], "interpolation": "bicubic", "max_size": None, "antialias": False},
    ),
    (T.CenterCrop(224), "CenterCrop(224)", {"size": [224, 224]}),
    (
        T.RandomResizedCrop((96, 128), (0.5, 1), interpolation=0),
        "RandomResizedCrop((96, 128), scale=(0.5, 1), interpolation='nearest')",
        {
            "size": [96, 128],
            "scale": [0.5, 1.0],
            "ratio": [0.75, 4 / 3],
            "interpolation": "nearest",
            "antialias": True,
        },
    ),
    (
        T.RandomCrop(32, 4, padding_mode="reflect"),
        "RandomCrop(32, padding=4, padding_mode='reflect')",
        {
            "size": [32, 32],
            "padding": [4, 4, 4, 4],
            "pad_if_needed": False,
            "fill": [0],
            "padding_mode": "reflect",
        },
    ),
    (
        T.Pad([1, 2], fill=(1, 2, 3)),
        "Pad((1, 2), fill=(1, 2, 3))",
        {"padding": [1, 2, 1, 2], "fill": [1, 2, 3], "padding_mode": "constant"},
    ),
    (T.RandomHorizontalFlip(), "RandomHorizontalFlip()", {"p": 0.5}),
    (T.RandomVerticalFlip(1), "RandomVerticalFlip(p=1)", {"p": 1.0}),
    (
        T.ColorJitter(0.4, [0.5, 1.5], hue=0.1),
        "ColorJitter(brightness=0.4, contrast=(0.5, 1.5), hue=0.1)",
        {"brightness": [0.6, 1.4], "contrast": [0.5, 1.5], "saturation": None, "hue": [-0.1, 0.1]},
    ),
    (T.ToTensor(), "ToTensor()", {"dtype": "float32", "layout": "CHW"}),
    (
        T.ToTensor(torch.bfloat16, "HWC"),
        "ToTensor(dtype='bfloat16', layout='HWC')",
        {"dtype": "bfloat16", "layout": "HWC"},
    ),
    (
        T.Normalize([0.5, 0.5, 0.5], np.array([0.1, 0.2, 0.3])),
        "Normalize((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))",
        {"mean": [0.5, 0.5, 0.5], "std": [0.1, 0.2, 0.3]},
    ),
    (T.Reshape((4, -1)), "Reshape((4, -1))", {"shape": [4, None]}),
    (T.ScaleShift(2.0), "ScaleShift(scale=2.0)", {"scale": [2.0], "shift": [0.0]}),
    (
        T.ScaleShift((1, 2), 3),
        "ScaleShift(scale=(1, 2), shift=3)",
        {"scale": [1, 2], "shift": [3, 3]},
    ),
    (T.Log(), "Log()", {"offset": 1.0}),
    (T.ToDtype(np.float16), "ToDtype('float16')", {"dtype": "float16"}),
    (T.Numpy(), "Numpy()", {}),
    (
        T.Raw(np.dtype("int16"), (4, 128, 128, 128)),
        "Raw('int16', shape=(4, 128, 128, 128))",
        {"dtype": "int16", "shape": [4, 128, 128, 128]},
    ),
    (T.Raw(jnp.float32), "Raw('float32')", {"dtype": "float32", "shape": [None]}),
    (T.Int(), "Int()", {}),
    (T.Float(), "Float()", {}),
]


@pytest.mark.parametrize(("step", "text", "arguments"), STEPS, ids=[text for _, text, _ in STEPS])
def test_a_step_is_plain_data(step: Any, text: str, arguments: dict[str, Any]) -> None:
    assert repr(step) == text
    assert eval(text, vars(T)) == step, "it prints as it is written"
    assert step.as_json() == {"op": type(step).__name__, **arguments}
    assert json.loads(json.dumps(step.as_json())) == step.as_json()
    assert pickle.loads(pickle.dumps(step)) == step
    assert hash(step) == hash(eval(text, vars(T)))
    with pytest.raises(AttributeError):
        step.size = 1


@pytest.mark.parametrize(
    "name", [n for n in T.__all__ if hasattr(v2, n) and n not in ("Compose", "ToTensor")]
)
def test_names_and_defaults_are_torchvisions(name: str) -> None:
    """What torchvision has, we have in the same place and with the same default."""
    import inspect

    ours = inspect.signature(getattr(T, name)).parameters
    theirs = inspect.signature(getattr(v2, name)).parameters
    if name == "ToDtype":  # whose scale=True is another step here
        assert list(ours) == list(theirs)
        return
    shared = list(theirs)
    assert list(ours)[: len(shared)] == shared
    for argument in shared:
        default = theirs[argument].default
        wanted = getattr(default, "value", default)
        assert ours[argument].default == wanted, argument


@pytest.mark.parametrize("value", [0, 0.4, (0.2, 1.7), (1, 1)])
def test_ranges_of_color_jitter_are_torchvisions(value: Any) -> None:
    theirs = v2.ColorJitter(value, value, value, hue=value if value == 0.4 else 0)
    ours = T.ColorJitter(value, value, value, value if value == 0.4 else 0).as_json()
    for name in ("brightness", "contrast", "saturation", "hue"):
        wanted = getattr(theirs, name)
        assert ours[name] == (None if wanted is None else list(wanted)), name


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: T.Resize(0), ValueError, "Resize: size has to be at least 1, not 0"),
    (
        lambda: T.Resize("256"),
        TypeError,
        "Resize: size has to be a whole number of pixels, not '256' (str)",
    ),
    (
        lambda: T.Resize((1, 2, 3)),
        ValueError,
        "Resize: size has to be one number or (height, width)",
    ),
    (lambda: T.Resize(256, max_size=200), ValueError, "200 has to be more than size, 256"),
    (lambda: T.Resize((2, 3), max_size=9), ValueError, "max_size needs a size of one number"),
    (lambda: T.Resize(8, "bilinar"), ValueError, "did you mean bilinear?"),
    (
        lambda: T.Resize(8, InterpolationMode.LANCZOS),
        ValueError,
        'interpolation "lanczos" is unknown',
    ),
    (lambda: T.Resize(True), TypeError, "Resize: size"),
    (lambda: T.Decode("BGR"), ValueError, 'Decode: mode "BGR" is unknown'),
    (lambda: T.Decode(max_pixels=0), ValueError, "Decode: max_pixels has to be at least 1"),
    (lambda: T.Decode(apply_exif_orientation=1), TypeError, "True or False"),
    (
        lambda: T.RandomResizedCrop(9, scale=(1, 0.1)),
        ValueError,
        "scale has to be (lowest, highest)",
    ),
    (lambda: T.RandomResizedCrop(9, scale=0.5), TypeError, "scale has to be a pair"),
    (lambda: T.RandomResizedCrop(9, ratio=(0, 1)), ValueError, "more than zero"),
    (
        lambda: T.RandomCrop(9, padding=(1, 2, 3)),
        ValueError,
        "RandomCrop: padding has to be one number",
    ),
    (lambda: T.RandomCrop(9, padding=-1), ValueError, "RandomCrop: padding has to be at least 0"),
    (lambda: T.Pad(1, fill=300), ValueError, "Pad: fill has to be from 0 to 255, not 300"),
    (lambda: T.Pad(1, padding_mode="wrap"), ValueError, 'Pad: padding_mode "wrap" is unknown'),
    (lambda: T.RandomHorizontalFlip(1.5), ValueError, "p has to be from 0 to 1, not 1.5"),
    (lambda: T.RandomVerticalFlip("half"), TypeError, "p has to be a number"),
    (lambda: T.ColorJitter(-1), ValueError, "brightness has to be at least 0"),
    (lambda: T.ColorJitter(hue=0.6), ValueError, "hue has to be from 0 to 0.5"),
    (lambda: T.ColorJitter(hue=(-0.6, 0)), ValueError, "hue has to be from -0.5 to 0.5"),
    (lambda: T.ToTensor("float33"), ValueError, 'ToTensor: dtype "float33" is unknown'),
    (lambda: T.ToTensor(torch.int64), ValueError, 'ToTensor: dtype "int64"'),
    (lambda: T.ToTensor(float), TypeError, "ToTensor: dtype has to be a dtype"),
    (lambda: T.ToTensor(layout="NCHW"), ValueError, "did you mean CHW?"),
    (lambda: T.Normalize((0.5,), (0.5, 0.5)), ValueError, "mean has 1 numbers and std 2"),
    (lambda: T.Normalize((0.5,), (0,)), ValueError, "std must not be zero"),
    (lambda: T.Normalize((), ()), ValueError, "mean is empty"),
    (lambda: T.Normalize((float("nan"),), (1,)), ValueError, "has to be finite"),
    (lambda: T.Reshape((None, -1)), ValueError, "can leave one extent open, not 2"),
    (lambda: T.ScaleShift((1, 2), (1, 2, 3)), ValueError, "scale has 2 numbers and shift 3"),
    (lambda: T.ToDtype("float32", scale=True), ValueError, 'ToTensor(dtype="float32")'),
    (lambda: T.Raw("complex64"), ValueError, 'Raw: dtype "complex64" is unknown'),
    (
        lambda: T.Raw(np.dtype(">f4")),
        ValueError,
        "Raw: dtype has to be in the machine's byte order, not dtype('>f4')",
    ),
    (lambda: T.Compose([T.Decode]), TypeError, "Decode is a class; write Decode(...)"),
    (
        lambda: T.Compose([3]),
        TypeError,
        "a chain is made of steps of belady.transforms and functions, not 3",
    ),
    (lambda: T.Compose("Decode"), TypeError, "a chain is made of steps"),
]


@pytest.mark.parametrize(("wrong", "kind", "sentence"), WRONG, ids=[s for *_, s in WRONG])
def test_a_wrong_argument_of_a_step_raises_where_it_is_written(
    wrong: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=re.escape(sentence)):
        wrong()


def brighter(image: Any) -> Any:
    return image


def test_chains_within_chains_are_one() -> None:
    chain = T.Compose([T.Decode(), T.Compose([[T.Resize(8)], brighter]), T.ToTensor()])
    assert repr(chain) == "Compose([Decode(), Resize(8), brighter, ToTensor()])"
    assert pickle.loads(pickle.dumps(chain)) == chain
    with pytest.raises(ValueError, match=r"step 3 \(brighter\) is a function"):
        chain.as_json()


def test_the_chains_of_imagenet_have_these_steps() -> None:
    train = T.imagenet_train(224)
    assert [step["op"] for step in train.as_json()] == [
        "Decode", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize",
    ]  # fmt: skip
    evaluated = T.imagenet_eval(224, resize=256)
    assert repr(evaluated) == (
        "Compose([Decode(), Resize(256), CenterCrop(224), ToTensor(), "
        "Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])"
    )
    as_bytes = T.imagenet_train(dtype="uint8").as_json()
    assert as_bytes[-1] == {"op": "ToTensor", "dtype": "uint8", "layout": "CHW"}


def test_importing_belady_imports_no_framework() -> None:
    import subprocess
    import sys

    code = (
        "import sys, belady; belady.transforms.imagenet_train(224); "
        "print(*({'torch', 'numpy', 'jax', 'torchvision'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_decode_and_transform_are_refused_together(data: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="decode and transform both say what becomes of a sample"):
        belady.DataLoader(data, decode=brighter, transform=[T.Decode()])


def test_bytes_as_they_are_and_transforms_are_refused_together(data: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="takes bytes and labels as they are; leave transform out"):
        belady.DataLoader(data, collate_fn=belady.torch.stack, transform=[T.Decode()])
