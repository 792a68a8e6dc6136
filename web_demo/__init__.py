"""The page at ``/``: static files, served by :mod:`duologue.realtime.demo_routes`. There is no build step."""
