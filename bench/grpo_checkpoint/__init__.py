"""The bench of checkpoints: cases and options are pure, `saves` has the two ways."""
