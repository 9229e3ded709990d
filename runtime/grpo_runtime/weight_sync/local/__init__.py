"""Backends within a process or a container: tensors that are lent, shared memory, and memory of a GPU."""
