"""What the scenarios share: a namespace with an operator, faults for it, and commands of the documentation.

The tests that use it are in the folder above; starting the local cluster is in `e2e/cluster`.
"""
