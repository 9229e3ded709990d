"""What the scenarios share: a namespace with an operator in it, and ways to look and to break things."""
