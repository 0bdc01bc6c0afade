"""Which loaders of images there are, what each needs, and how one is run."""

import dataclasses

from .process import ROOT, CommandFailed
from .python_context import imports

IMAGES = 4_000
STAGING = 128 << 20


@dataclasses.dataclass(frozen=True)
class Loader:
    """A loader, as bench/loaders/images calls it, with so many threads or worker processes."""

    key: str
    threads: int
    name: str
    module: str
    # Of the files that FFCV reads.
    stored: str | None = None
    # belady's RAM tier holds all images.
    cached: bool = False

    @property
    def title(self):
        return self.name if self.threads == 1 else f"{self.name}, {self.threads}"

    @property
    def ours(self):
        return self.key == "belady"


def both(*how, **more):
    """With one thread and with two."""
    return [Loader(how[0], threads, *how[1:], **more) for threads in (1, 2)]


LOADERS = (
    *both("belady", "belady", "belady.transforms", cached=True),
    Loader("belady", 1, "belady, no cache", "belady.transforms"),
    *both("dali-fused", "DALI, crop while decoding", "nvidia.dali"),
    *both("dali-full", "DALI, whole decode", "nvidia.dali"),
    *both("ffcv-jpg-chw", "FFCV, JPEG stored", "ffcv", stored="jpg"),
    *both("ffcv-raw-chw", "FFCV, raw RGB stored", "ffcv", stored="raw"),
    Loader("ffcv-jpg", 1, "FFCV, JPEG stored, channels last", "ffcv", stored="jpg"),
    Loader("ffcv-raw", 1, "FFCV, raw RGB stored, channels last", "ffcv", stored="raw"),
    *both("torch-v2", "torch DataLoader, decode_jpeg and v2", "torchvision"),
    *both("torch-pil", "torch DataLoader, PIL", "torchvision"),
    *both("tf-data", "tf.data", "tensorflow"),
)


class Data:
    """The images, as each loader stores them; made when they are first asked for."""

    def __init__(self, context, count):
        self.context, self.count = context, count
        self.folder = context.folder / f"images-{count}"
        context.python(ROOT / "bench" / "photographs.py", self.folder, count)
        self.bytes = sum(path.stat().st_size for path in self.folder.glob("*/*.jpg"))

    def stored(self, mode):
        file = self.folder.with_name(f"{self.folder.name}-{mode}.beton")
        self.context.loader("images/store_ffcv.py", self.folder, file, "--mode", mode)
        return file

    @property
    def cache(self):
        """What belady needs to hold all: a little more than the files, for the ends of pages."""
        return self.bytes + self.count * 4096

    def run(self, loader, *options, **how):
        data = self.stored(loader.stored) if loader.stored else self.folder
        options = ["--threads", loader.threads, *options]
        if loader.ours:
            options += ["--staging", f"{STAGING}B"]
        if loader.cached:
            options += ["--cache", f"ram:{self.cache}B"]
        return self.context.loader("images", loader.key, data, *options, **how)


def present(context, loaders):
    """The loaders that are here, and a sentence for each module that is not."""
    reasons = {}
    for module in dict.fromkeys(loader.module for loader in loaders):
        if module == "ffcv":
            reason = context.ffcv_missing()
        else:
            reason = None if imports(module) else f"{module} cannot be imported here"
        if reason:
            reasons[module] = reason
    here = [loader for loader in loaders if loader.module not in reasons]
    if not here:
        raise CommandFailed("no loader is installed: run `make bench-environment`")
    return here, list(reasons.values())
