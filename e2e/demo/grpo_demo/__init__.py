"""The whole path of a user in one command. Standard library only, so that it runs on a bare machine."""
