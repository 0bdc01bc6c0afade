"""What every section needs: the programs, the datasets, the number of runs."""

import dataclasses
import pathlib

from .process import CommandFailed, Commands, run

# ImageNet's mean, by which the figures are stated.
SAMPLE = 110_000
# ImageNet-1k.
MANY = 1_281_167


@dataclasses.dataclass
class Context:
    target: pathlib.Path
    runs: int
    commands: Commands = dataclasses.field(default_factory=Commands)

    def __post_init__(self):
        self.commands.name(self.target, "target")

    def binary(self, name):
        path = self.target / "release" / name
        if not path.exists():
            raise CommandFailed(f"{path} does not exist: run `make bench`, which builds it")
        return path

    @property
    def folder(self):
        """Datasets are kept there between runs; `make clean` removes them."""
        folder = self.target / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def dataset(self, name, *options):
        path = self.folder / name
        run(self.commands, [self.binary("baselines"), "dataset", path, *options])
        return path

    def baseline(self, *command, **how):
        return run(self.commands, [self.binary("baselines"), *command], **how)

    def belady(self, *command, **how):
        return run(self.commands, [self.binary("belady"), *command], **how)

    def read(self, dataset, kind, *options, **how):
        """`belady read` with what is the same in every section; checks the order."""
        finished = self.belady(
            "read",
            dataset,
            "--format",
            kind,
            "--batch",
            64,
            "--seed",
            0,
            "--order",
            "torch",
            "--json",
            *options,
            **how,
        )
        if not finished.json["order_ok"]:
            raise CommandFailed("belady read delivered samples out of order")
        return finished

    def example(self, name, *options):
        path = self.binary(f"examples/{name}")
        return run(self.commands, [path, *options])
