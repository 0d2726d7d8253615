"""The three faces of an op: direct (arrays), eager (tracked values) and traced (programs). See engine/autodiff.py for users."""
