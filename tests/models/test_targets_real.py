"""The default model on other CPU targets than this machine's best: the same greedy tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llamita.engine.kernels.targets import available_targets

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden/smollm2_q4_1.json").read_text(encoding="utf-8"))["cases"]
CODE = """
import json, sys
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.session import build_decoder
found = []
with open_checkpoint(sys.argv[1]) as checkpoint, build_decoder(checkpoint, n_ctx=64, n_threads=2) as decoder:
    for ids, tokens in json.load(sys.stdin):
        decoder.rewind(0)
        logits, greedy = decoder.forward(ids), []
        top = [float(logits[token]) for token in tokens]
        for _ in range(24):
            greedy.append(int(logits.argmax()))
            logits = decoder.forward(greedy[-1:])
        found.append((top, greedy))
print(json.dumps(found))
"""


@pytest.mark.parametrize("target", available_targets()[1:])
def test_greedy_tokens_of_another_target(real_model_path, target):
    cases = [(case["ids"], [token for token, _ in case["top_logits"]]) for case in GOLDEN]
    command, environment = [sys.executable, "-c", CODE, str(real_model_path)], {**os.environ, "LLAMITA_TARGET": target}
    done = subprocess.run(command, input=json.dumps(cases), env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for case, (top, greedy) in zip(GOLDEN, json.loads(done.stdout), strict=True):
        assert greedy == case["greedy_ids"], case["prompt"]
        assert top == pytest.approx([logit for _, logit in case["top_logits"]], abs=0.05), case["prompt"]
