"""Bytes to media and back: PCM, G.711, resampling, WAV, synthesis from acoustic frames.

Knows no session and no model server.
"""
