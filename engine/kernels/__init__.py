"""Kernels: numba functions over raw addresses, compiled once on a machine (see runtime/store.py).

Every kernel has one native signature, `(args, thread, n_threads)`: `args` is the address of a block of 64-bit words,
and the `n_threads` calls of one instruction share its work by `thread`. The modules here import numba at their top, so
only the compiling process imports them; `targets` is the exception.
"""
