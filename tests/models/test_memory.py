"""What a loaded model takes: the file's pages, its packed weights, the cache, and little more."""

import subprocess
import sys

import pytest

from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.config import read_config

# VmHWM rather than ru_maxrss on Linux: that one counts what the process was before it became Python, a copy of the tests'.
CODE = """
import resource, sys
from pathlib import Path
import llamita
with llamita.load(sys.argv[1], n_ctx=int(sys.argv[2]), activations=int(sys.argv[3])) as llm:
    assert len(llm.complete(list(range(100, 400)), max_tokens=8, temperature=0).tokens) == 8
status = Path("/proc/self/status")
if status.exists():
    print(next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM")))
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
@pytest.mark.parametrize(("activations", "n_ctx", "width"), [(16, 2048, 2), (32, 2048, 4), (8, 8192, 2)])
def test_peak_memory(real_model_path, activations, n_ctx, width):
    """At most the file, the cache and 250 MiB; a float32 copy of the weights would take 513 MiB more."""
    with open_checkpoint(real_model_path) as checkpoint:
        allowed = checkpoint.size_bytes + read_config(checkpoint).kv_bytes_per_token(width) * n_ctx + (250 << 20)
        assert 4 * checkpoint.n_params > 500 << 20
    command = [sys.executable, "-c", CODE, str(real_model_path), str(n_ctx), str(activations)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout)
    print(f"peak of {activations}-bit activations and {n_ctx} tokens: {peak >> 20} MiB of {allowed >> 20}")
    assert peak <= allowed <= 700 << 20
