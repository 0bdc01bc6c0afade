"""What every loader of the demo has in common."""

BATCH = 32
# Of torch's DataLoader, and threads of the plain reader.
WORKERS = 2
# Batches that torch's workers, and the plain reader's threads, hold ahead.
AHEAD = 2 * WORKERS
# Of belady: about 9 batches of files.
STAGING_BYTES = 8_000_000
STAGING = f"{STAGING_BYTES}B"
