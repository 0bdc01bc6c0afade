"""Asks a callback for epochs on a thread of Python's own.

An interpreter that ends throws its threads out wherever they are. It may do so with this one:
while a callback runs there is nothing of Rust on its stack.
"""


def feed(feeder):
    while (wanted := feeder.wanted()) is not None:
        try:
            given = ask(*wanted)
        except BaseException as error:
            feeder.failed(error)
        else:
            feeder.gave(given, wanted[1])
        # Nothing of the user's is held while this waits, so that it can be collected.
        wanted = given = None


def ask(callback, epoch):
    given = callback(epoch)
    if given is None:
        return None
    samples, ends = given
    return settled(samples), None if ends is None else settled(ends)


def settled(numbers):
    """What has a buffer stays; what only iterates is gone through here."""
    try:
        memoryview(numbers)
    except TypeError:
        return list(numbers)
    return numbers
