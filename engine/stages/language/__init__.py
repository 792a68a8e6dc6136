"""Language models. One interface, several backends.

A backend is a :class:`~duologue.engine.stage.Stage` that takes :class:`~duologue.engine.requests.Converse` and emits
:class:`~duologue.engine.requests.TextDelta` and :class:`~duologue.engine.requests.ToolCallDelta` as they are written,
:class:`~duologue.engine.requests.Usage` now and then (what came on top of the last report; with the prompt tokens that
had been read before), and
:class:`~duologue.engine.stage.StageFinish` when it was cut short. It says which of tools and pictures it takes
(:meth:`~duologue.engine.stage.Stage.abilities`), and stops at a token when its request is aborted. The deploy file
chooses it by ``engine_args: {backend: ...}``.
"""
