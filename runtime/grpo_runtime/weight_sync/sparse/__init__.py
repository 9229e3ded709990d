"""The trainer's side of a sparse weight sync: what changed since the copy before, and which engines can use
that. How changes are found, written and applied is in `stream`, and what keeps them in `receiver`."""
