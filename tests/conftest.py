"""What all rooms' tests share: a cache folder of the suite's own, and the real model in it."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

# Kept between runs, and apart from the user's: set before anything of llamita is imported. LLAMITA_TEST_HOME overrides it.
HOME = Path(os.environ.get("LLAMITA_TEST_HOME") or platformdirs.user_cache_dir("llamita-tests", appauthor=False))
os.environ["LLAMITA_HOME"] = str(HOME)


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The default model's file, fetched as a user's would be; a test fails with the reason when it cannot be."""
    from llamita.loaders.library import DEFAULT_MODEL, resolve

    return resolve(DEFAULT_MODEL)
