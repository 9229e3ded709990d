"""Backends between pods: the trainer and the workers of all engines in one group, of gloo or of NCCL."""
