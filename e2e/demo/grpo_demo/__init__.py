"""`make demo`: everything a new user does, in one command.

Standard library only, so that it runs on a machine where nothing is installed.
"""
