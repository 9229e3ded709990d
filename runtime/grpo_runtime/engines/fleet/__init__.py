"""Rollout engines in pods of their own, as the trainer sees them. The server in the pod is in `serve`.

What is decided about an engine is decided in one of four places:

    membership   its state and what is remembered of it: whether it may be given work
    liveness     whether it hangs
    dispatch     within one call of `generate`: which of those engines gets a request, also again
    syncer       when it is given new weights, and which engines share a sync

`fleet` is what the trainer holds, `core` runs these in an event loop, `roster` looks at every engine and
keeps its state, `engine_sync` is one weight sync from pause to admission, `engine_calls` what is asked of an
engine and taken for an answer, `engine_client` how it is called, `idleness` counts the seconds without work,
and `settings` has every limit.
"""
