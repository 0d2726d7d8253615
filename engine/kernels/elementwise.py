"""Several exact steps of a fused region as one pass over memory: sixteen elements at a time, temporaries in registers.

Exact steps (sums, products, quotients, square roots, signs) are rounded alike on every machine, so fusing changes no bit;
`blocks` takes NumPy's own loops for the others. Values are numbered: inputs first, then one a step. Argument words: number
of elements, then the addresses of the outputs, then of the inputs.
"""

from .simd import lanes
from .simd.arithmetic import absolute, sqrt
from .simd.memory import get_i64, store

UNIT = 512  # elements that are not shared between threads: whole cache lines

STEPS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "{0} * minus_one()",
    "abs": "absolute({0})",
    "sqrt": "sqrt({0})",
}


def build(elem, inputs, steps, outputs):
    """inputs: one letter an input, "v" an array, "s" one number; steps: (name, operands...); outputs: value numbers."""
    load_part, store_part = lanes.part_access(elem)
    scope = {
        "absolute": absolute,
        "get": lanes.scalar_access(elem)[0],
        "get_i64": get_i64,
        "load": lanes.loader(elem),
        "load_part": load_part,
        "minus_one": lanes.constant(elem, -1.0),
        "repeat": lanes.splatter(elem),
        "share": lanes.share,
        "sqrt": sqrt,
        "store": store,
        "store_part": store_part,
        "zero": lanes.constant(elem, 0.0),
    }
    first = len(inputs)
    body = [f"v{first + i} = " + STEPS[name].format(*(f"v{int(o)}" for o in operands)) for i, (name, *operands) in enumerate(steps)]
    arrays = [i for i, kind in enumerate(inputs) if kind == "v"]
    size = lanes.size_of(elem)
    lines = ["def kernel(args, thread, n_threads):"]
    lines += [f"    o{i} = get_i64(args + {8 + 8 * i})" for i in range(len(outputs))]
    lines += [f"    i{i} = get_i64(args + {8 * (1 + len(outputs) + i)})" for i in range(first)]
    lines += [f"    v{i} = repeat(get(i{i}))" for i, kind in enumerate(inputs) if kind == "s"]
    lines += [f"    at, stop = share(get_i64(args), {UNIT}, thread, n_threads)"]
    lines += [f"    while at + {lanes.LANES} <= stop:"]
    lines += [f"        v{i} = load(i{i} + {size} * at)" for i in arrays]
    lines += [f"        {line}" for line in body]
    lines += [f"        store(o{i} + {size} * at, v{int(value)})" for i, value in enumerate(outputs)]
    lines += [f"        at += {lanes.LANES}", "    if at < stop:"]
    lines += [f"        v{i} = load_part(i{i} + {size} * at, stop - at, zero())" for i in arrays]
    lines += [f"        {line}" for line in body]
    lines += [f"        store_part(o{i} + {size} * at, stop - at, v{int(value)})" for i, value in enumerate(outputs)]
    exec("\n".join(lines), scope)  # built here, from names of STEPS and numbers alone
    return scope["kernel"]
