"""What the operator writes and the runtime reads, and the other way round.

Every module here is one part of that agreement. `SCHEMA_VERSION` covers all of them; see `versions`.
"""
