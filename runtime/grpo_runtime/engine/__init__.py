"""A vLLM engine as both modes need it: arguments, environment, model class, and the routes of its server.

Used by engines in pods (`serve`), engines in ranks (`colocated`) and the trainer that calls them (`fleet`).
No engine is started here.
"""
