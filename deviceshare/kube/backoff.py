"""Exponential backoff with jitter."""

import random
from collections.abc import Iterator


def delays(first: float, most: float) -> Iterator[float]:
    """Seconds to wait before each next try: doubling up to `most`, each drawn from its upper half.

    Drawn, so that clients that failed together don't come back together.
    """
    ceiling = first
    while True:
        yield random.uniform(ceiling / 2, ceiling)
        ceiling = min(ceiling * 2, most)
