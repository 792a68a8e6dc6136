"""How pieces cross from one stage to the next.

Within a process (``LocalConnector``) by reference: there is nothing to do. Between processes of one host
(``SharedMemoryConnector``): :mod:`~duologue.engine.connectors.pieces` turns a piece into bytes,
:mod:`~duologue.engine.connectors.segments` keeps large ones in shared memory,
:mod:`~duologue.engine.connectors.shared_memory` sends and receives them.
"""
