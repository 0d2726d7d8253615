"""A kernel that does nothing: what starting one costs."""


def build():
    """No parameters."""

    def kernel(args, thread, n_threads):
        return

    return kernel
