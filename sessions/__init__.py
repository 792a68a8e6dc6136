"""Who may speak, and what was heard: the conversation as a sans-I/O state machine, and the actor that drives it."""
