"""Machines that are network namespaces: each has an address of its own and a link of a given rate.

A bridge in a namespace of its own joins them, so that this machine's own network is not touched.
What leaves a node is shaped there, and what comes to it where it leaves the bridge (`tc tbf`).
Needs root.
"""

import os
import pathlib
import subprocess
import tempfile
import time

from . import process
from .process import CommandFailed

NAMESPACES = pathlib.Path("/run/netns")
SUBNET = "10.87.0"
# Bytes that may be sent at once. A timer of the kernel comes every few ms; at the rates used here
# that is less than this.
BURST = 256 << 10
# How long a packet may wait in a node's queue.
QUEUE = "50ms"


class Network:
    """`with Network(commands, nodes, rate) as net:` makes `nodes` machines with links of `rate` bytes a
    second; `net.on(node)` goes before a command to run it there."""

    def __init__(self, commands, nodes, rate):
        self.nodes, self.rate = nodes, rate
        self.name = f"belady-{os.getpid()}"
        for node in range(nodes):
            commands.name(NAMESPACES / self.space(node), f"node{node}")

    def space(self, node):
        return f"{self.name}-{node}"

    def address(self, node):
        return f"{SUBNET}.{node + 1}"

    def on(self, node):
        return ["nsenter", f"--net={NAMESPACES / self.space(node)}"]

    def __enter__(self):
        try:
            hub = self.space("hub")
            ip("netns", "add", hub)
            ip("-n", hub, "link", "add", "hub", "type", "bridge")
            ip("-n", hub, "link", "set", "hub", "up")
            for node in range(self.nodes):
                self._add(hub, node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add(self, hub, node):
        space, port = self.space(node), f"port{node}"
        ip("netns", "add", space)
        ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", hub, "link", "set", port, "master", "hub", "up")
        ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "link", "set", "eth0", "up")
        for where, device in ((space, "eth0"), (hub, port)):
            shape = ("rate", f"{8 * self.rate:.0f}", "burst", BURST, "latency", QUEUE)
            tool("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", *shape)

    def __exit__(self, *_):
        for node in [*range(self.nodes), "hub"]:
            # One that was never made is gone already.
            subprocess.run(
                ["ip", "netns", "del", self.space(node)], capture_output=True, check=False
            )

    def set_link(self, node, how):
        """Takes the link of a node `"down"`, or `"up"` again."""
        ip("-n", self.space("hub"), "link", "set", f"port{node}", how)

    def everywhere(self, commands, make, env=None):
        """Runs `make(node)` on all nodes at once; what each has printed, as JSON, by node."""
        return together(
            commands, [[*self.on(node), *make(node)] for node in range(self.nodes)], env
        )


def ip(*arguments):
    tool("ip", *arguments)


def tool(*command):
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CommandFailed(
            f"{command[0]}: {error.strerror}; it is in the package iproute2"
        ) from error
    if done.returncode != 0:
        raise CommandFailed(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def together(commands, all_of_them, env=None):
    """Runs commands at the same time; `Finished`, by command. If one fails, all are ended."""
    all_of_them = [[str(part) for part in command] for command in all_of_them]
    # They differ by their ranks: one stands for all.
    commands.add(all_of_them[0])
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / str(at) for at in range(len(all_of_them))]
        started = []
        try:
            for file, command in zip(files, all_of_them, strict=True):
                with file.open("wb") as out, file.with_suffix(".err").open("wb") as err:
                    started.append(
                        subprocess.Popen(
                            command,
                            cwd=process.ROOT,
                            stdout=out,
                            stderr=err,
                            env={**os.environ, **(env or {})},
                        )
                    )
            wait_for_all(commands, started, all_of_them, files)
        finally:
            for child in started:
                if child.returncode is None:
                    child.kill()
                    child.wait()
        return [process.Finished(file.read_text(), 0, 0, 0, 0).json for file in files]


def wait_for_all(commands, started, all_of_them, files):
    """Until all have ended well, one has not, or the time is over."""
    until = time.monotonic() + process.LIMIT_SECONDS
    while any(child.poll() is None for child in started):
        failed(commands, started, all_of_them, files)
        if time.monotonic() > until:
            raise CommandFailed(
                f"{commands.show(all_of_them[0])} was ended after {process.LIMIT_SECONDS} s"
            )
        time.sleep(0.05)
    failed(commands, started, all_of_them, files)


def failed(commands, started, all_of_them, files):
    for child, command, file in zip(started, all_of_them, files, strict=True):
        if child.returncode:
            told = file.with_suffix(".err").read_text(errors="replace").strip().splitlines()
            why = told[-1] if told else "it said nothing"
            raise CommandFailed(f"{commands.show(command)} failed: {why}")
