"""Where a stage's replica runs: in this process (:mod:`~duologue.engine.executors.inline`), or in others later."""
