"""Gradients and programs for users, in one place.

from llamita import ops
from llamita.engine.autodiff import grad, gradcheck, spec, trace, tracked, vjp

x = tracked(np.ones((2, 3)))
(dx,) = grad(ops.reduce_sum(ops.softmax(x)), [x])           # eager

program = trace(ops.softmax, spec((2, 3), "f64"))           # traced
program.op_count, program.run(array), vjp(program).run(array, cotangent)
"""

from .faces.checkpoint import checkpointing as checkpointing
from .faces.eager import Tracked as Tracked
from .faces.eager import capture_primitives as capture_primitives
from .faces.eager import grad as grad
from .faces.eager import tracked as tracked
from .faces.gradient import gradient as gradient
from .faces.gradient import vjp as vjp
from .faces.modes import composites_only as composites_only
from .faces.modes import no_grad as no_grad
from .faces.program import Program as Program
from .faces.spec import Spec as Spec
from .faces.spec import spec as spec
from .faces.tape import stored_bytes as stored_bytes
from .faces.traced import trace as trace
from .gradcheck import gradcheck as gradcheck

__all__ = [
    "Program",
    "Spec",
    "Tracked",
    "capture_primitives",
    "checkpointing",
    "composites_only",
    "grad",
    "gradcheck",
    "gradient",
    "no_grad",
    "spec",
    "stored_bytes",
    "trace",
    "tracked",
    "vjp",
]
