"""Matrix products and row lookups in every format, against float64 over weights that the gguf package decoded."""

import numpy as np
import pytest
from kernel_drivers import DENSE, K_TYPES, Rows, bits, dequantized, product_error, random_bytes, random_tensor, team

from llamita.engine import ops
from llamita.engine.errors import RankMismatch
from llamita.quant.formats import FORMATS
from llamita.quant.packing import LAYOUTS, pack, pack_spec
from llamita.quant.qtensor import QTensor

KERNELS = [(name, width) for name in FORMATS for width in ((32,) if name in DENSE else (8, 16, 32))]
EDGES = (1, 15, 16, 17, 31, 33)  # around a group of sixteen rows, and around tiles of tokens


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """All kernels of this file in few batches, which compile side by side; one at a time they would take twice as long."""
    weights = [random_tensor(name, 256, 256) for name in FORMATS]
    team().store.load([pack_spec(weight) for weight in weights])

    def all_formats(*rows):
        x = rows[0]
        for weight, row in zip(weights, rows, strict=True):
            x = row + ops.linear(x, weight)
        return x

    for width in (8, 16, 32):
        Rows(all_formats, *weights, width=width, tokens=1)


def columns_of(name):
    if name in K_TYPES:
        return (256, 512, 768)
    return (32, 64, 96, 256, 512) + ((33, 50, 7) if name in DENSE else ())


def activations(rows, columns, seed=7):
    """Rows of different sizes, one of zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))
    x[3 % rows] = 0
    return x.astype(np.float32)


def product(weight, x, width, **options):
    return Rows(lambda rows: ops.linear(rows, weight), x, width=width, **options)


@pytest.mark.parametrize(("name", "width"), KERNELS)
def test_products_of_all_sizes(name, width):
    for columns in columns_of(name):
        x = activations(max(EDGES), columns)
        for rows in EDGES:
            weight = random_tensor(name, rows, columns, seed=rows)
            w = dequantized(weight)
            exact, bound = x.astype(np.float64) @ w.astype(np.float64).T, product_error(x, w, width)
            kernel = product(weight, x, width)
            whole = kernel.run(range(len(x)))
            worst = np.abs(whole - exact) / np.maximum(bound, 1e-300)
            assert worst.max() <= 1, f"N {rows} K {columns}: {worst.max():.2f} times the bound"
            assert not whole[3].any()
            for tokens in EDGES:
                ids = np.arange(tokens)[::-1]
                assert np.array_equal(bits(kernel.run(ids)), bits(whole[ids])), f"N {rows} K {columns} T {tokens}"


@pytest.mark.parametrize("width", [8, 16, 32])
def test_the_bound_means_something(width):
    """Relative to a typical result it is what the width promises, so that a wrong scale or column cannot hide in it."""
    x, w = activations(16, 512), dequantized(random_tensor("Q4_0", 16, 512))
    x = x[np.abs(x).max(1) > 0]
    typical = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1) / np.sqrt(512)
    assert (product_error(x, w, width) / typical).max() < {8: 1.0, 16: 5e-3, 32: 2e-3}[width]


@pytest.mark.parametrize(("name", "width"), KERNELS)
def test_bias_and_residual(name, width):
    columns = columns_of(name)[0]
    weight, x = random_tensor(name, 33, columns), activations(17, columns)
    rng = np.random.default_rng(1)
    bias, residual = rng.standard_normal(33).astype(np.float32), rng.standard_normal((17, 33)).astype(np.float32)
    plain = product(weight, x, width).run(range(17)).astype(np.float64)
    with_bias = Rows(lambda rows: ops.linear(rows, weight, bias), x, width=width).run(range(17))
    with_residual = Rows(lambda rows, r: r + ops.linear(rows, weight), x, residual, width=width).run(range(17))
    with_both = Rows(lambda rows, r: r + ops.linear(rows, weight, bias), x, residual, width=width).run(range(17))
    np.testing.assert_allclose(with_bias, plain + bias, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(with_residual, plain + residual, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(with_both, plain + bias + residual, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "width"), KERNELS)
def test_what_is_not_finite_stays_in_its_row(name, width):
    columns = columns_of(name)[-1] if name in K_TYPES else 96
    x = activations(17, columns)
    x[3] = 1
    clean = product(weight := random_tensor(name, 33, columns), x, width).run(range(17))
    poisoned = x.copy()
    poisoned[2, 5], poisoned[9, columns - 1], poisoned[16, 40] = np.nan, np.inf, -np.inf
    kernel = product(weight, poisoned, width)
    y = kernel.run(range(17))
    assert np.isnan(y[2]).all()
    assert not np.isfinite(y[[9, 16]]).any()
    healthy = [t for t in range(17) if t not in (2, 9, 16)]
    assert np.array_equal(bits(y[healthy]), bits(clean[healthy]))
    assert np.array_equal(bits(kernel.run(healthy)), bits(clean[healthy])), "an earlier run left something behind"
    for t in (2, 9, 16):  # the path for single tokens
        assert not np.isfinite(kernel.run([t])).any()


def with_scale(tensor, row, column, value):
    """The tensor with one scale (or, in dense formats, one weight) replaced."""
    fmt, blocks = tensor.format, np.array(tensor.blocks)
    fields = blocks[row].view(fmt.layout)
    block = column // fmt.block_size
    if fmt.layout.names:
        fields["d"][block] = value
    elif fmt.name == "BF16":
        fields[block] = np.array(value, np.float32).view(np.uint32) >> 16
    else:
        fields[block] = value
    return QTensor(fmt, tensor.shape, blocks, tensor.name)


@pytest.mark.parametrize(("name", "width"), KERNELS)
def test_scales_that_are_not_finite_stay_in_their_row(name, width):
    columns = 512 if name in K_TYPES else 96
    weight, x = random_tensor(name, 33, columns), activations(9, columns)
    x[3] = 1
    clean = product(weight, x, width).run(range(9))
    broken = with_scale(with_scale(weight, 4, columns - 1, np.nan), 32, 0, np.inf)
    y = product(broken, x, width).run(range(9))
    assert np.isnan(y[:, 4]).all()
    assert not np.isfinite(y[:, 32]).any()
    others = [n for n in range(33) if n not in (4, 32)]
    assert np.array_equal(bits(y[:, others]), bits(clean[:, others]))


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("size", [1e-38, 1e-35, 1e-30, 1e30])
def test_activations_far_from_one(width, size):
    """As exact as others relative to their size, as long as that is a normal number; never NaN."""
    weight = random_tensor("Q8_0", 16, 64)
    x = (np.random.default_rng(0).standard_normal((9, 64)) * size).astype(np.float32)
    y = product(weight, x, width).run(range(9))
    w = dequantized(weight)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert np.isfinite(y).all()
    slack = 0 if size > 1e-33 else 1e-33
    assert (np.abs(y - exact) <= product_error(x, w, width) + slack).all()


@pytest.mark.parametrize(("name", "width"), [("Q4_0", 16), ("Q4_K", 8), ("Q6_K", 16), ("Q8_0", 32), ("F16", 32)])
@pytest.mark.parametrize("n_threads", [1, 3, 5])
def test_threads_change_nothing(name, width, n_threads):
    columns = columns_of(name)[2]
    weight, x = random_tensor(name, 97, columns), activations(33, columns)
    y = product(weight, x, width).run(range(33))
    assert np.array_equal(bits(product(weight, x, width, on=team(n_threads)).run(range(33))), bits(y))


def test_a_wide_and_a_tall_matrix():
    for rows, columns in ((1, 8192), (4099, 32)):
        weight, x = random_tensor("Q4_0", rows, columns), activations(5, columns)
        w = dequantized(weight)
        exact, bound = x.astype(np.float64) @ w.astype(np.float64).T, product_error(x, w, 16)
        assert (np.abs(product(weight, x, 16).run(range(5)) - exact) <= bound).all()


@pytest.mark.parametrize("source", [random_tensor, random_bytes])
@pytest.mark.parametrize("name", FORMATS)
def test_row_lookup_is_exactly_dequantize(name, source):
    for rows, columns in ((1, columns_of(name)[0]), (33, columns_of(name)[-1])):
        tensor = source(name, rows, columns, seed=rows)
        ids = np.random.default_rng(0).integers(0, rows, 19)
        kernel = Rows(lambda x: x, tensor, tokens=19)
        assert np.array_equal(bits(kernel.run(ids)), bits(dequantized(tensor)[ids]))
        assert np.array_equal(bits(kernel.run(ids[:1])), bits(dequantized(tensor)[ids[:1]]))


@pytest.mark.parametrize("name", FORMATS)
def test_packing_keeps_the_files_size(name):
    tensor = random_bytes(name, 160, 768)
    packed = pack(tensor, team())
    assert packed.nbytes <= 1.05 * tensor.nbytes
    assert packed.data.ctypes.data % 64 == 0
    assert set(LAYOUTS) == set(FORMATS)


def test_only_a_matrix_packs():
    cube = QTensor(FORMATS["F32"], (2, 3, 4), np.zeros((6, 16), np.uint8), "cube")
    with pytest.raises(RankMismatch, match=r"cube.*\[2, 3, 4\]"):
        pack(cube, team())
