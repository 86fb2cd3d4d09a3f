"""Parts of the benchmark, one module each: loads, measurements, and targets."""

from bench.parts import (
    batches,
    constrained,
    decode,
    documents,
    files,
    interactive,
    memory,
    objects,
    pictures,
    queue,
    runs,
    search,
    shared,
    soak,
    tokens,
    uneven,
    unique,
)

PARTS = (
    decode.PART,
    uneven.PART,
    unique.PART,
    shared.PART,
    constrained.PART,
    interactive.PART,
    memory.PART,
    files.PART,
    objects.PART,
    batches.PART,
    runs.PART,
    queue.PART,
    search.PART,
    tokens.PART,
    documents.PART,
    pictures.PART,
)
LONG = (soak.PART,)  # measured only if named in --parts
