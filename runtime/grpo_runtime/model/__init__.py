"""Policies: where they come from, how they are loaded, saved and named on the wire."""
