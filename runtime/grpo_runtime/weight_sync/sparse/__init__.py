"""Sparse weight sync: only the weights that changed travel, and the receiver puts them into the bytes that it
kept. Which engines get it is decided here; groups and transports are in `network`."""
