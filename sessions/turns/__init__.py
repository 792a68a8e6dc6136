"""Turn policies: pure functions of voice-activity probabilities and time."""
