"""What travels: all weights as one stream of bytes, with its layout and tag, and the copy that is sent."""
