"""``duologue bench full-duplex``: recorded conversations laid out as in Full-Duplex-Bench, replayed and scored."""
