"""Measures one operator with hundreds of jobs: a real API server and scheduler, and nodes that KWOK plays.

No container runs. A stub answers /progress for every trainer pod. What real pods do is in e2e/scenarios.
"""
