"""A region of elementwise steps as one pass over memory: sixteen elements at a time, temporaries in registers.

The steps come from an op's formula or from a traced program, so a fused activation is its composite, step by step, and
nothing else. Values are numbered: inputs first, then one a step. Argument words: number of elements, then the addresses
of the outputs, then of the inputs.
"""

from llvmlite import ir
from numba.extending import intrinsic

from . import mathematics
from .simd import lanes
from .simd.arithmetic import absolute, maximum, minimum, sqrt
from .simd.memory import get_i64, store
from .simd.values import map_vectors

UNIT = 512  # elements that are not shared between threads: whole cache lines

_OPERATORS = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}"}
_FUNCTIONS = {"abs": absolute, "maximum": maximum, "minimum": minimum, "sqrt": sqrt, "select": lanes.select}
_BY_TYPE = ("exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "erf", "rsqrt")


@intrinsic
def _negative(typingctx, value):
    def codegen(context, builder, sig, args):
        return map_vectors(builder, value, [value], args, lambda v: builder.fmul(v, ir.Constant(v.type, [-1.0] * v.type.count)))

    return value(value), codegen


def _statement(step, number, elem, scope):
    """The line of source that computes value `number`; puts what it calls into `scope`."""
    name, *operands = step
    target = f"v{number}"
    if name in _OPERATORS:
        return f"{target} = " + _OPERATORS[name].format(*(f"v{i}" for i in operands))
    if name == "constant":
        scope[f"c{number}"] = lanes.constant(elem, operands[0])
        return f"{target} = c{number}()"
    if name == "clamp":
        x, low, high = operands
        scope[f"c{number}"], scope[f"d{number}"] = lanes.constant(elem, low), lanes.constant(elem, high)
        return f"{target} = minimum(maximum(v{x}, c{number}()), d{number}())"
    if name == "compare":
        direction, *operands = operands
        scope[f"f{number}"] = lanes.comparison(direction)
    elif name == "pow":
        scope[f"f{number}"] = lanes.libm("pow")
    elif name == "neg":
        scope[f"f{number}"] = _negative
    elif name in _BY_TYPE:
        scope[f"f{number}"] = getattr(mathematics, name)(elem)
    else:
        scope[f"f{number}"] = _FUNCTIONS[name]
    return f"{target} = f{number}({', '.join(f'v{i}' for i in operands)})"


def build(elem, inputs, steps, outputs):
    """inputs: one letter an input, "v" an array, "s" one number; steps: (name, operands..., attributes...); outputs: value numbers."""
    load_part, store_part = lanes.part_access(elem)
    scope = {
        "get_i64": get_i64,
        "store": store,
        "load": lanes.loader(elem),
        "load_part": load_part,
        "store_part": store_part,
        "repeat": lanes.splatter(elem),
        "get": lanes.scalar_access(elem)[0],
        "share": lanes.share,
        "zero": lanes.constant(elem, 0.0),
        "maximum": maximum,
        "minimum": minimum,
    }
    body = [_statement(step, len(inputs) + i, elem, scope) for i, step in enumerate(steps)]
    arrays = [i for i, kind in enumerate(inputs) if kind == "v"]
    size = lanes.size_of(elem)
    lines = ["def kernel(args, thread, n_threads):"]
    lines += [f"    o{i} = get_i64(args + {8 + 8 * i})" for i in range(len(outputs))]
    lines += [f"    i{i} = get_i64(args + {8 * (1 + len(outputs) + i)})" for i in range(len(inputs))]
    lines += [f"    v{i} = repeat(get(i{i}))" for i, kind in enumerate(inputs) if kind == "s"]
    lines += [f"    at, stop = share(get_i64(args), {UNIT}, thread, n_threads)"]
    lines += [f"    while at + {lanes.LANES} <= stop:"]
    lines += [f"        v{i} = load(i{i} + {size} * at)" for i in arrays]
    lines += [f"        {line}" for line in body]
    lines += [f"        store(o{i} + {size} * at, v{value})" for i, value in enumerate(outputs)]
    lines += [f"        at += {lanes.LANES}", "    if at < stop:"]
    lines += [f"        v{i} = load_part(i{i} + {size} * at, stop - at, zero())" for i in arrays]
    lines += [f"        {line}" for line in body]
    lines += [f"        store_part(o{i} + {size} * at, stop - at, v{value})" for i, value in enumerate(outputs)]
    exec("\n".join(lines), scope)  # the source is built here from checked names and numbers alone
    return scope["kernel"]
