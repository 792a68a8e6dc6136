"""Text on its way to speech: making it speakable, cutting it into clauses. Pure functions and classes."""
