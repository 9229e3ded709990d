"""The objects that a job owns, built from its stored spec, and their names.

Pure. Whether and when they are created is decided in `plan`.
"""
