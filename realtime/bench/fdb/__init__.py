"""``duologue bench full-duplex``: replay of recorded conversations in the layout of Full-Duplex-Bench, and its scores."""
