"""Reward functions: the built-in ones, how a user's are found, and the processes they are called in.

Each has a process of its own, so that a function that hangs cannot hang the run. How rewards become
advantages is in `algorithm`.
"""
