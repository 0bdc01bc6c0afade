"""The slow file system, mounted for the time of a measurement."""

import json
import pathlib
import signal
import subprocess
import tempfile
import time

from .process import CommandFailed

# t(γ) of scenarios/hdmlp-4.toml, in MB/s. What stands there for 4 nodes stands here for
# 4 reads in flight.
HDMLP_4 = {1: 66, 2: 86, 3: 129, 4: 146}

# Seconds in which slowfs unmounts when it is told to.
PATIENCE = 10


def throughput(curve):
    """A table {readers: MB/s} as slowfs takes it."""
    return ",".join(f"{readers}:{rate}MB/s" for readers, rate in curve.items())


class Mount:
    """`with Mount(binary, source, curve) as at:` shows `source` in the folder `at.path`."""

    def __init__(self, commands, slowfs, source, curve, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="belady-slowfs-")
        self.path = pathlib.Path(self.folder.name)
        command = [slowfs, source, self.path, "--throughput", throughput(curve), *options]
        self.command = [str(part) for part in command]
        commands.name(self.path, "MOUNT")
        commands.add(self.command)

    def __enter__(self):
        try:
            # A group of its own: Ctrl-C is for us, who unmount it when its reader has gone.
            self.process = subprocess.Popen(
                self.command, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            self.folder.cleanup()
            raise CommandFailed(f"{self.command[0]}: {error.strerror}") from error
        try:
            self._wait_until_mounted()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_until_mounted(self):
        while True:
            try:
                self.stats()
                return
            except (OSError, ValueError):
                if self.process.poll() is not None:
                    told = self.process.stderr.read().decode().strip()
                    raise CommandFailed(f"slowfs failed: {told}") from None
                time.sleep(0.01)

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # Someone still holds a file open: take it out of the tree, then end it.
            subprocess.run(["umount", "--lazy", self.path], check=False)
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()
        self.folder.cleanup()

    def stats(self):
        """Operations and bytes since it was mounted, as the file system counted them."""
        return json.loads((self.path / ".slowfs-stats").read_text())
