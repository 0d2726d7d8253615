"""How fast this machine reads memory: the roof of decode, which has to read every weight once a token.

    python benchmarks/bandwidth.py -t 1,2 --mib 64,256,1024
    python benchmarks/bandwidth.py -t 2 -m model.gguf

The buffer is read by engine/runtime/bandwidth.py, as `llamita bench` reads it for its roofline: in order, each thread its own
part. Reading is tried in several ways (one to four streams a thread, with and without asking ahead); the fastest one counts.
With -m the buffer is as large as the file's tensors: weights that fit in the last-level cache are read from there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from interference import TOLERATED, Others

from llamita.engine.runtime.bandwidth import WAYS, BandwidthReader
from llamita.engine.runtime.team import Team, usable_cpus


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--threads", default=f"1,{usable_cpus()}", help="comma list [default: %(default)s]")
    parser.add_argument("--mib", default="64,256,1024", help="sizes of the buffer in MiB, comma list [default: %(default)s]")
    parser.add_argument("-m", "--model", action="append", default=[], type=Path, help="read as many bytes as this file's tensors have")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement [default: %(default)s]")
    options = parser.parse_args()
    from llamita.loaders.checkpoint import open_checkpoint

    sizes = []
    for path in options.model:
        with open_checkpoint(path) as checkpoint:
            sizes.append((path.stem, int(checkpoint.size_bytes)))
    if not sizes:
        sizes = [(f"{n} MiB", int(n) << 20) for n in options.mib.split(",")]
    head = [f"{streams} stream{'s'[: streams > 1]}{f', {ahead >> 10} KiB ahead' if ahead else ''}" for streams, ahead in WAYS]
    print("| buffer | threads | " + " | ".join(head) + " | best GB/s |")
    print("| --- | ---: |" + " ---: |" * (len(WAYS) + 1))
    others = Others([])
    for name, n_bytes in sizes:
        for n_threads in sorted({int(n) for n in options.threads.split(",")}):
            team = Team(n_threads)
            try:
                reader = BandwidthReader(team, n_bytes)
                rates = [reader.rate(way, options.seconds / len(WAYS)) / 1e9 for way in WAYS]
            finally:
                team.close()
            print(f"| {name} | {n_threads} | " + " | ".join(f"{rate:.1f}" for rate in rates) + f" | **{max(rates):.1f}** |", flush=True)
    if (share := others.share() or 0.0) > TOLERATED:
        print(f"\nOther programs took {share:.0%} of the processors: close them and measure again.")


if __name__ == "__main__":
    main()
