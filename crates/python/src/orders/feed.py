"""Calls a callback for epochs on a Python thread.

An interpreter that exits stops its threads at any point. That is safe here: while a callback runs,
no Rust code is on the thread's stack.
"""


def feed(feeder):
    while (wanted := feeder.wanted()) is not None:
        try:
            given = ask(*wanted)
        except BaseException as error:
            feeder.failed(error)
        else:
            feeder.gave(given, wanted[1])
        # Drops references before waiting, so that the user's objects can be collected.
        wanted = given = None


def ask(callback, epoch):
    given = callback(epoch)
    if given is None:
        return None
    samples, ends = given
    return settled(samples), None if ends is None else settled(ends)


def settled(numbers):
    """Returns an object with a buffer as it is, and any other iterable as a list."""
    try:
        memoryview(numbers)
    except TypeError:
        return list(numbers)
    return numbers
