"""Every error that llamita raises on purpose.

    LlamitaError
    ├── OpError                  an operand or attribute of an op is wrong
    │   ├── UnsupportedDType     ├── DTypeMismatch      ├── ShapeMismatch
    │   ├── RankMismatch         ├── AxisOutOfBounds    ├── DuplicateAxis
    │   ├── InvalidArgument      ├── IndexOutOfRange    ├── ContextMismatch
    │   ├── NotContiguous        └── MissingGradient
    ├── ModelFileError           something about a model's file
    │   ├── ModelNotFoundError   no such file, folder or library name
    │   ├── CorruptFileError     the bytes contradict themselves or the file's size
    │   └── UnsupportedModelError  well-formed, but an architecture or tensor type we do not run
    ├── DownloadError            a model could not be fetched
    ├── TokenizerError           no usable tokenizer, or ids it does not know
    ├── TemplateError            the chat template failed or is missing
    ├── ContextOverflowError     more tokens than the context holds
    ├── KernelError              a kernel could not be compiled or loaded
    └── ClosedError              use after close()

Messages read `<op or file>: <what>: expected X, got Y [tensor / offset]`, in one line.
"""

from __future__ import annotations


class LlamitaError(Exception):
    """Root of all errors that a user can act on."""


class OpError(LlamitaError):
    """An op was called with something that it does not take."""


class UnsupportedDType(OpError):
    """The op is not defined for this element type."""


class DTypeMismatch(OpError):
    """Two operands that must share an element type do not."""


class ShapeMismatch(OpError):
    """Extents contradict each other."""


class RankMismatch(OpError):
    """The number of axes is wrong."""


class AxisOutOfBounds(OpError):
    """An axis lies outside [-rank, rank)."""


class DuplicateAxis(OpError):
    """An axis was named twice."""


class InvalidArgument(OpError):
    """An attribute has a value that the op does not accept."""


class IndexOutOfRange(OpError):
    """An index points outside the table."""


class ContextMismatch(OpError):
    """Values of different graphs, faces or engines were mixed."""


class NotContiguous(OpError):
    """A memory layout that cannot be served."""


class MissingGradient(OpError):
    """A gradient was asked for where none is defined."""


class ModelFileError(LlamitaError):
    """Something about a model's file."""


class ModelNotFoundError(ModelFileError):
    """No such file, folder or library name."""


class CorruptFileError(ModelFileError):
    """The bytes contradict themselves or the file's size."""


class UnsupportedModelError(ModelFileError):
    """Well-formed, but an architecture or tensor type that is not supported."""


class DownloadError(LlamitaError):
    """A model could not be fetched."""


class TokenizerError(LlamitaError):
    """No usable tokenizer, or ids that it does not know."""


class TemplateError(LlamitaError):
    """The chat template failed or is missing."""


class ContextOverflowError(LlamitaError):
    """More tokens than the context holds."""


class KernelError(LlamitaError):
    """A kernel could not be compiled or loaded."""


class ClosedError(LlamitaError):
    """The model was used after close()."""
