"""Names and definitions of the voice-to-voice measures, for help texts, reports and documents alike."""

from __future__ import annotations

from typing import Final

TOTAL: Final = "last audible user sample -> first audible sample heard of the answer; the silence window is included"
PARTS: Final = {
    "silence_window": "last audible user sample -> speech_stopped received",
    "recogniser_tail": "-> transcription completed received",
    "first_clause": "-> first text or transcript delta of the answer received",
    "first_audio": "-> first audio delta received",
    "leading_silence": "-> first audible sample heard (silence at the front of the audio, waiting in the player)",
}
"""The parts in order; each begins where the one before ends, so that they add up to the whole."""
