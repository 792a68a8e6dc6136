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

AUDIO_TTFP: Final = "response.created received -> first audio delta received"
AUDIO_UNDERRUN: Final = (
    "silence inside a response for a player that starts with its first delta; null: it had one delta"
)
AUDIO_DURATION: Final = "seconds of audio received per response"

LIMITED: Final = {"v2v": "ms", **dict.fromkeys(PARTS, "ms"), "audio_ttfp": "ms", "audio_underrun": "s"}
"""Measures of one answer that ``--goodput`` takes a limit for, with their units; the server's own of the same name are
in ``/metrics`` (``duologue_audio_ttfp_s``, ``duologue_audio_underrun_s``, ``duologue_audio_duration_s``)."""
