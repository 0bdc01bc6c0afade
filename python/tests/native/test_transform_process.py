"""Transformers, signals, forks and ends of processes, each in a separate program."""

import signal

import pytest

from .test_process import SLOW, data, interrupted, quiet

__all__ = ["data"]

STAGE = """
    chain = _native.Chain('[{"op": "Raw", "dtype": "uint8", "shape": [null]}]')
    fixed = _native.Chain('[{"op": "Raw", "dtype": "uint8", "shape": [100]}]')
    def transformed(epochs=None, field=chain, **options):
        loader = engine.start(data, orders, epochs=epochs)
        return loader.transformed([(None, field)], threads=2, on_error="skip", **options)
"""


def test_ctrl_c_works_while_a_transformer_waits(data: str) -> None:
    code = (
        STAGE
        + """
    transformer = transformed()
    print("waiting", flush=True)
    transformer.next()
    """
    )
    status, errors = interrupted(code, data, SLOW)
    assert "KeyboardInterrupt" in errors and status == -signal.SIGINT


@pytest.mark.parametrize("keep", ["global", "cycle", "thread", "callback"])
def test_an_exit_with_a_live_transformer_is_quiet(data: str, keep: str) -> None:
    code = (
        STAGE
        + f"""
    blocks = []
    on_block = (lambda *what: blocks.append(what)) if {keep!r} == "callback" else None
    transformer = transformed(on_block=on_block)
    made = transformer.next()
    view = memoryview(made.field(0)[0])
    if {keep!r} == "cycle":
        knot = [transformer, made]
        knot.append(knot)
    if {keep!r} == "thread":
        threading.Thread(target=lambda: list(iter(transformer.next, None)), daemon=True).start()
        time.sleep(0.2)
    """
    )
    quiet(code, data)


def test_a_forked_child_uses_no_transformer_of_its_parent(data: str) -> None:
    code = (
        STAGE
        + """
    transformer = transformed(epochs=2)
    first = transformer.next()
    array = first.field(0)[0]
    child = os.fork()
    if child == 0:
        refused = 0
        uses = [transformer.next, transformer.stats, transformer.waiting_for, transformer.close]
        for use in uses:
            try:
                use()
            except _native.BeladyError as error:
                assert "in this process" in str(error), error
                refused += 1
        # What was made is a copy of the parent's.
        print("child", refused, len(first.ids), len(bytes(memoryview(array))) > 0, flush=True)
        del transformer, first, array
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("parent", sum(len(made) for made in iter(transformer.next, None)))
    """
    )
    assert quiet(code, data) == "child 4 4 True\nparent 116\n"


def test_a_forked_child_keeps_transformed_samples_as_of_the_fork(data: str) -> None:
    code = (
        STAGE
        + """
    large = _native.Chain('[{"op": "Raw", "dtype": "uint8", "shape": [500]}]')
    orders = _native.Orders.python(lambda epoch: ([0] * 400, None), samples=len(data), batch=400)
    transformer = transformed(epochs=6, field=large)
    view = memoryview(transformer.next().field(0))
    before = bytes(view)
    assert len(before) == 400 * 500
    from_here, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(from_here, 1)
        assert bytes(view) == before
        sys.exit(0)
    # The parent uses this memory again before the child looks at it.
    del view
    rest = sum(1 for _ in iter(transformer.next, None))
    os.write(to_child, b".")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), rest)
    """
    )
    assert quiet(code, data) == "0 5\n"


def test_memory_of_blocks_survives_a_fork(data: str) -> None:
    code = (
        STAGE
        + """
    transformer = transformed(epochs=3, field=fixed)
    held = [transformer.next() for _ in range(3)]
    child = os.fork()
    if child == 0:
        del held
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(len(held) + sum(1 for _ in iter(transformer.next, None)))
    """
    )
    assert quiet(code, data) == "45\n"
