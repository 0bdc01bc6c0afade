"""Writes the seeds of the fuzz targets into corpus/: small proper files and near misses.

The first byte of every seed is the target's choice of what to do with the rest.
"""

import gzip
import io
import pathlib
import struct
import tarfile

HERE = pathlib.Path(__file__).parent / "corpus"


def save(target: str, name: str, choice: int, data: bytes) -> None:
    folder = HERE / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(bytes([choice]) + data)


def numpys() -> None:
    def dictionary(descr: str, shape: str, fortran: bool = False) -> bytes:
        return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()

    def file(version: int, header: bytes, data: bytes) -> bytes:
        length = len(header).to_bytes(2 if version == 1 else 4, "little")
        return b"\x93NUMPY" + bytes([version, 0]) + length + header + data

    def both(name: str, header: bytes, data: bytes = bytes(range(48))) -> None:
        for version in (1, 2):
            save("npy", f"{name}-{version}", 0, file(version, header, data))
        save("npy", f"{name}-dictionary", 1, header)

    both("floats", dictionary("<f4", "(3, 4)"))
    both("fortran", dictionary(">i2", "(2, 3, 4)", fortran=True))
    both("scalar", dictionary("|b1", "()"))
    both("halves", dictionary("<f2", "(24,)"))
    both("objects", dictionary("|O", "(1,)"))
    both("absurd", dictionary("<f8", f"({2**62}, {2**62})"))
    both("nothing", dictionary("<u8", f"(0, {2**62})"))
    both("fields", b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}")
    both("python-2", b"{'shape': (3L, ), \"descr\": '=u8', 'fortran_order': True}")
    save("npy", "cut", 0, file(1, dictionary("<f4", "(3, 4)"), bytes(47)))


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    crc = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return struct.pack("<I", (crc + 0xA282EAD8) & 0xFFFFFFFF)


def record(payload: bytes, length: int | None = None) -> bytes:
    header = struct.pack("<Q", len(payload) if length is None else length)
    return header + masked(header) + payload + masked(payload)


def tfrecords() -> None:
    def as_is(name: str, data: bytes) -> None:
        save("tfrecord", name, 0, data)

    three = record(b"one") + record(b"") + record(b"three" * 20)
    as_is("three", three)
    as_is("cut-header", three[:25])
    as_is("cut-payload", three[:-10])
    as_is("absurd-length", record(b"x", length=2**64 - 1))
    as_is("absurd-length-2", record(b"") + record(b"x", length=2**63))
    as_is("gzip", gzip.compress(three, mtime=0))
    as_is("large", record(bytes(5000)) * 2)
    payloads = b"\x03one\x00\x05three\xffrest"
    for choice in (1, 2, 3):
        save("tfrecord", f"written-{choice}", choice, b"\x21\x00\x01" * (choice > 1) + payloads)


def archive(members, form=tarfile.USTAR_FORMAT, **options) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, **options) as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            if isinstance(body, bytes):
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
            else:
                info.type, info.linkname = body
                tar.addfile(info)
    # The end mark stays, the padding to 10 KiB goes: seeds are to be small.
    data = out.getvalue().rstrip(b"\0")
    return data + bytes(-len(data) % 512 + 1024)


def webdatasets() -> None:
    def both(name: str, data: bytes) -> None:
        save("webdataset", f"{name}-as-is", 0, data)
        save("webdataset", f"{name}-repaired", 1, data)

    pair = [("0.jpg", b"picture"), ("0.cls", b"7"), ("1.jpg", b""), ("1.cls", b"12\n")]
    both("pairs", archive(pair))
    both("folders", archive([("a", (tarfile.DIRTYPE, "")), ("a/0.x", b"x"), ("b/0.x", b"y")]))
    both("links", archive([("0.a", b"1"), ("l.a", (tarfile.SYMTYPE, "/etc")), ("0.b", b"2")]))
    both("hard-link", archive([("0.a", b"1"), ("h.a", (tarfile.LNKTYPE, "0.a"))]))
    both("device", archive([("d.a", (tarfile.CHRTYPE, "")), ("0.a", b"1")]))
    both("absolute", archive([("/etc/passwd.txt", b"x")]))
    both("dots", archive([("a/../../b.txt", b"x")]))
    both("gnu-long", archive([("d/" * 70 + "0.jpg", b"x")], tarfile.GNU_FORMAT))
    both("pax-long", archive([("d/" * 90 + "\u00e9.jpg", b"x")], tarfile.PAX_FORMAT))
    both("pax-global", archive(pair[:2], tarfile.PAX_FORMAT, pax_headers={"comment": "hello"}))
    both("prefix", archive([("p" * 90 + "/" + "n" * 90 + ".jpg", b"x")]))
    both("unnamed", archive([("README", b"x"), (".x.y", b"y"), ("__m__/a.b", b"z")]))
    both("twice", archive([("0.a", b"1"), ("0.A", b"2")]))
    both("cut", archive(pair)[:1300])
    both("no-end", archive(pair)[:-1024])
    both("joined", archive(pair) + archive(pair))
    save("webdataset", "marked", 3, archive(pair)[:-1024])
    save("webdataset", "gzip", 0, gzip.compress(archive(pair), mtime=0))
    # A size in GNU's binary form, and one that pax overrides.
    binary = bytearray(archive([("0.a", b"1")]))
    binary[124:136] = b"\x80" + (1).to_bytes(11, "big")
    save("webdataset", "binary-size", 1, bytes(binary))
    header = tarfile.TarInfo("0.a")
    header.pax_headers = {"size": "3"}
    described = header.tobuf(tarfile.PAX_FORMAT) + b"abc".ljust(512, b"\0")
    save("webdataset", "pax-size", 3, described)
    sparse = tarfile.TarInfo("0.a")
    sparse.type = tarfile.GNUTYPE_SPARSE
    save("webdataset", "sparse", 3, sparse.tobuf(tarfile.GNU_FORMAT))


def column(form: str, values) -> bytes:
    data = struct.pack(f"<{len(values)}{form}", *values)
    return data + bytes(-len(data) % 8)


def texts(names: list[bytes]) -> bytes:
    ends = [sum(map(len, names[: at + 1])) for at in range(len(names))]
    joined = b"".join(names)
    return column("Q", ends) + joined + bytes(-len(joined) % 8)


def snapshot(shape: int, files, ranges, lengths, labels, classes, directories) -> bytes:
    """The columns of crates/data/src/source/block.rs; the target adds the checksum."""
    samples = len(files) if shape == 0 else len(lengths)
    names = [name for name, _ in files]
    folders = [name for name, _ in directories]
    counts = [shape, int(bool(labels)), samples]
    for group in (names, classes, folders):
        counts += [len(group), sum(map(len, group))]
    header = b"BeladyCt" + struct.pack("<13Q", 0, 2, 0, 0, *counts)
    return b"".join(
        [
            header.ljust(128, b"\0"),
            texts(names),
            column("Q", [size for _, size in files]),
            column("q", [5] * len(files)),
            column("I", [file for file, _ in ranges]),
            column("Q", [offset for _, offset in ranges]),
            column("Q", lengths),
            column("I", labels),
            texts(classes),
            texts(folders),
            column("q", [time for _, time in directories]),
            column("q", [6] * len(files)),
        ]
    )


def snapshots() -> None:
    files = [(b"a/0.jpg", 10), (b"b/1.jpg", 20)]
    ranges = [(0, 0), (0, 5), (1, 20)]
    folders = [(b"a", 1), (b"b", -1)]
    kinds = {
        "whole": snapshot(0, files, [], [], [0, 1], [b"a", b"b"], folders),
        "ranges": snapshot(1, files, ranges, [5, 5, 0], [], [], folders[:1]),
        "labelled": snapshot(1, files, ranges, [5, 5, 0], [1, 0, 2**32 - 1], [b"x", b""], []),
        "sizes": snapshot(2, [], [], [3, 0, 2**64 - 1], [], [], []),
        "empty": snapshot(0, [], [], [], [], [], []),
        "outside": snapshot(1, files, [(0, 2**64 - 1), (9, 0)], [5, 5], [], [], []),
    }
    for name, data in kinds.items():
        save("snapshot", name, 1, data)
    save("snapshot", "unsealed", 0, kinds["whole"])
    save("snapshot", "cut", 1, kinds["whole"][:130])


def tier_indexes() -> None:
    """The header of crates/data/src/tier/disk/index.rs; the target adds checksum and pages."""

    def header(samples: int, equal: int, width: int, name: bytes) -> bytes:
        numbers = struct.pack("<IIQQQQII", 2, 16, 7, samples, 1 << 20, equal, width, len(name))
        return (b"BELADYIX" + numbers).ljust(64, b"\0") + name.ljust(512, b"\0")

    def entries(count: int) -> bytes:
        return b"".join(struct.pack("<QQq", at + 1, (at % 4) << 62 | at, 5) for at in range(count))

    save("tier_index", "empty", 1, header(0, 0, 0, b""))
    save("tier_index", "equal", 1, header(3, 100, 0, b"dataset") + entries(3))
    sizes = struct.pack("<3I", 1, 2, 3)
    save("tier_index", "narrow", 1, header(3, 0, 4, b"dataset") + entries(3) + sizes)
    wide = struct.pack("<3Q", 1, 2, 2**40)
    save("tier_index", "wide", 1, header(3, 0, 8, b"x" * 512) + entries(3) + wide)
    save("tier_index", "absurd", 1, header(2**32 - 1, 0, 8, b""))
    save("tier_index", "as-is", 0, header(3, 100, 0, b"dataset"))


def images() -> None:
    """The golden files of scripts/golden_images.py: in RGB, and a turned part in grey."""
    golden = HERE.parents[1] / "crates/transform/tests/golden/images"
    for file in sorted(golden.iterdir()):
        if file.suffix != ".bin":
            save("image", f"{file.name}-whole", 0, bytes(4) + file.read_bytes())
            save("image", f"{file.name}-part", 0b0101, b"\3\2\7\5" + file.read_bytes())


def examples() -> None:
    """Messages of tf.train.Example, with lengths below 128."""

    def message(field: int, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return bytes([field << 3 | 2, len(body)]) + body

    def entry(name: bytes, *lists: bytes) -> bytes:
        return message(1, message(1, name), message(2, *lists))

    image = entry(b"image", message(1, message(1, b"JPEG"), message(1, b"")))
    packed = entry(
        b"label", message(3, message(1, b"\x07\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
    )
    single = entry(b"box", message(2, b"\x0d" + struct.pack("<f", 1.5)))
    floats = entry(b"box", message(2, message(1, struct.pack("<2f", 1.5, -2.0))))
    folder = HERE / "example"
    folder.mkdir(parents=True, exist_ok=True)
    whole = message(1, image, packed, single, floats)
    (folder / "whole").write_bytes(whole)
    (folder / "cut").write_bytes(whole[:-3])
    (folder / "two-kinds").write_bytes(message(1, entry(b"x", message(1), message(3), message(2))))
    (folder / "long-number").write_bytes(b"\x08" + b"\xff" * 11 + message(1))


def peers() -> None:
    """Messages of crates/peer/src/wire.rs; the targets add headers with lengths and checksums."""

    digest = struct.pack("<Q", 99)
    # Variant, then its fields: numbers are varints, signed ones in zigzag, lists after their length.
    bodies = {
        "get": bytes([0, 1, 2, 2, 5, 0, 8, 1]),
        "put": bytes([1, 1, 1, 5, 1, 2, 4]) + digest + bytes([15]),
        "epoch-done": bytes([2, 1, 1, 3]),
        "released": bytes([2, 1, 2, 3, 1, 4]),
        "replies": bytes([3, 2, 0, 100]) + digest + bytes([15, 2]),
        "taken": bytes([4, 3, 0, 1, 2]),
    }
    for name, body in bodies.items():
        save("peer_frame", name, 1, bytes(12) + body)
        save("peer_frame", f"{name}-as-is", 0, bytes(12) + body)
        save("peer_conversation", name, 2, bytes([4]) + body)
    asks = b"".join(bytes([sample, 0]) for sample in range(12))
    save("peer_conversation", "many", 2, bytes([0, 0, 0, 0, 12]) + asks)
    first_words = b"belady\r\n\4\0" + bytes(32)
    save("peer_conversation", "handshake", 0, first_words + b"\2\0hi" + bytes(32))
    save("peer_conversation", "other-version", 0, b"belady\r\n\7\0" + bytes(32))


def boards() -> None:
    folder = HERE / "run_board"
    folder.mkdir(parents=True, exist_ok=True)
    want = b"train/a.jpg"
    message = struct.pack("<HB", len(want), 1) + want + struct.pack("<HB", 0, 2)
    (folder / "messages").write_bytes(message)
    (folder / "variable").write_bytes(b"1234:5:6:18446744073709551615")
    (folder / "absolute").write_bytes(b"\0/data//set/./train/a.jpg")
    (folder / "upwards").write_bytes(b"/d/s/train\0../val/b")


if __name__ == "__main__":
    numpys()
    tfrecords()
    webdatasets()
    snapshots()
    tier_indexes()
    images()
    examples()
    peers()
    boards()
