"""One model in every type, written by llama.cpp's own quantiser, so that both sides read the same files.

    python benchmarks/requantize.py --folder models
    python benchmarks/requantize.py --folder models --types Q4_0,Q4_K_M --pure only -m model.gguf

Files are named <model>.<type>.gguf, and <model>.<type>-pure.gguf for the variants in which the embedding has the type too
(without --pure llama.cpp gives some tensors more bits). A file that is there already is kept. The source may be quantised
itself: its weights are then rounded a second time, which changes what the model says but not how fast it runs, and every
comparison of accuracy here is with the float arithmetic of the same file.

Formats in super-blocks (Q2_K .. Q6_K) need rows of a multiple of 256. llama.cpp gives rows of other lengths the nearest
plain format; in SmolLM2-135M (576 columns) only ffn_down keeps the format that the file is named after. What a file really
holds is printed; shaped_model.py makes models in which all matrices have the format.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
from pathlib import Path

from wire import Worker, WorkerError

from llamita.engine.errors import LlamitaError
from llamita.engine.runtime.team import usable_cpus

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K")
FLOATS = ("F32", "F16", "BF16")  # every matrix has the type anyway


def contents(path: Path) -> str:
    """How many bytes of which format the matrices of a file take: "Q4_0 66 MiB, Q8_0 28 MiB"."""
    from llamita.loaders.checkpoint import open_checkpoint

    sizes: collections.Counter[str] = collections.Counter()
    with open_checkpoint(path) as checkpoint:
        for info in checkpoint.tensors.values():
            if len(info.shape) > 1:
                sizes[info.format.name] += info.nbytes
    return ", ".join(f"{name} {n / 2**20:.1f} MiB" for name, n in sizes.most_common())


def requantize(worker: Worker, source: Path, folder: Path, kind: str, pure: bool) -> Path:
    """Write one file unless it is there; it appears whole or not at all."""
    stem = source.stem.rsplit(".", 1)[0]
    target = folder / f"{stem}.{kind}{'-pure' if pure else ''}.gguf"
    if not target.exists():
        part = target.with_suffix(".part")
        try:
            worker.ask("quantize", source=str(source), target=str(part), kind=kind, pure=pure, n_threads=usable_cpus())
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    return target


def main() -> None:
    """Write the files, one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="where the files go")
    add("-m", "--model", help="a .gguf file or a library name [default: the library's default model]")
    add("--types", default=",".join(TYPES), help="comma list of llama-quantize's names [default: %(default)s]")
    add("--pure", choices=("no", "also", "only"), default="also", help="variants with one type throughout [default: %(default)s]")
    add("--llamacpp-python", default=sys.executable, metavar="PATH", help="interpreter that has llama_cpp [default: this one]")
    options = parser.parse_args()
    from llamita.loaders.library import DEFAULT_MODEL, resolve

    try:
        source = resolve(options.model or DEFAULT_MODEL)
        options.folder.mkdir(parents=True, exist_ok=True)
        with Worker("llama.cpp", "llamacpp_worker.py", options.llamacpp_python) as worker:
            for kind in options.types.split(","):
                for pure in (False, True):
                    wanted = {"no": not pure, "only": pure or kind in FLOATS, "also": True}[options.pure]
                    if wanted and not (pure and kind in FLOATS):
                        path = requantize(worker, source, options.folder, kind, pure)
                        print(f"{path.name}: {contents(path)}", flush=True)
    except (WorkerError, LlamitaError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
