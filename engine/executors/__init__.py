"""Where a stage's replica runs: in this process (:mod:`~duologue.engine.executors.inline`),
or in a process of its own (:mod:`~duologue.engine.executors.process`)."""
