"""Other languages' runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transparent.inside import files, program
from transparent.inside.commands import run

NODE = """
const fs = require("fs"), crypto = require("crypto");
const hash = (bytes) => crypto.createHash("sha256").update(bytes).digest("hex");
(async () => {
  for (const path of process.argv.slice(1)) {
    const parts = [];
    for await (const part of fs.createReadStream(path)) parts.push(part);
    const ways = [fs.readFileSync(path), await fs.promises.readFile(path), Buffer.concat(parts)];
    console.log(path, fs.statSync(path).size, ways.map(hash).join(" "));
  }
})();
"""

JAVA = """
import java.io.*; import java.nio.*; import java.nio.channels.*; import java.nio.file.*; import java.util.*;
public class Reader {
  public static void main(String[] names) throws Exception {
    for (String name : names) {
      long sum = Arrays.hashCode(Files.readAllBytes(Path.of(name)));
      try (InputStream stream = new FileInputStream(name)) {
        sum = sum * 31 + Arrays.hashCode(stream.readAllBytes());
      }
      try (FileChannel channel = FileChannel.open(Path.of(name))) {
        ByteBuffer memory = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
        sum = sum * 31 + memory.hashCode();
      }
      try (RandomAccessFile file = new RandomAccessFile(name, "r")) {
        file.seek(file.length() / 2);
        sum = sum * 31 + file.read();
      }
      System.out.println(new File(name).getName() + " " + new File(name).length() + " " + sum);
    }
  }
}
"""

PERL = """
use Digest::SHA qw(sha256_hex);
for my $path (@ARGV) {
  open(my $file, "<:raw", $path) or die "$path: $!";
  local $/; my $bytes = <$file>;
  print -s $path, " ", sha256_hex($bytes), "\\n";
}
"""


@program("node", command="node")
def node(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("node", "-e", NODE, *files(data))


@program("Java", command="javac")
def java(data: Path, scratch: Path) -> Iterator[bytes]:
    (scratch / "Reader.java").write_text(JAVA)
    yield from run("java", "-XX:TieredStopAtLevel=1", scratch / "Reader.java", *files(data))


@program("Perl", command="perl")
def perl(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("perl", "-e", PERL, *files(data))
