"""`python -m tests.simulator --histories 2000 --seed 7 --without reboots,agents`; see the package."""

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.simulator.history import run


def main(arguments: Sequence[str]) -> int:
    """Runs histories; exits with 1 where one went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--histories", type=int, default=50)
    parser.add_argument("--seed", type=int, help="of the first one; by default a fresh one")
    parser.add_argument("--without", default="", help="kinds of events that don't happen, with commas")
    parser.add_argument("--show", type=int, default=1, help="of how many failures to print all that happened")
    chosen = parser.parse_args(arguments)
    first = random.SystemRandom().randrange(1 << 31) if chosen.seed is None else chosen.seed
    without = [word for word in chosen.without.split(",") if word]
    begun, failed, writes = time.monotonic(), Counter[str](), 0
    for seed in range(first, first + chosen.histories):
        outcome = run(seed, without)
        writes += outcome.writes
        if outcome.faults:
            failed[outcome.faults[0]] += 1
            print(f"seed {seed}: {outcome.faults[0]}", flush=True)
            if failed.total() <= chosen.show:
                print("\n".join(outcome.told))
    seconds = time.monotonic() - begun
    print(
        f"{chosen.histories} histories from seed {first} in {seconds:.0f} s, {writes} writes: {failed.total()} failed"
    )
    if failed:
        print("Commit the seed of a failure in tests/simulator/test_histories.py (EXAMPLES).")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of what the seed decides
        command = [sys.executable, "-m", "tests.simulator", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main(sys.argv[1:]))
