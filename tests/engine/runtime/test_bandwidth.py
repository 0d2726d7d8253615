"""The speed of memory: every way of reading reads the whole buffer, on any number of threads."""

import pytest
from kernel_drivers import team

from llamita.engine.runtime.bandwidth import WAYS, BandwidthReader


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("n_bytes", [1, 512 * 7, 100_000])
def test_all_of_a_buffer_is_read(n_threads, n_bytes):
    reader = BandwidthReader(team(n_threads), n_bytes)  # it counts what each way has read
    assert n_bytes <= reader.n_bytes <= n_bytes + 512 * n_threads and reader.n_bytes % 512 == 0
    assert all(reader.rate(way, 0.0) > 0 for way in WAYS)
    assert reader.best(0.0) > 0
