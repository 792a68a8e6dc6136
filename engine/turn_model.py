"""Does the user sound finished? Smart Turn for all sessions, on one worker thread.

A question is the sound of a turn up to a pause; the answer is the probability that the turn is over, or None when there
is none (the model failed, too many questions wait, the service does not run). Every question is answered exactly once,
on the event loop, unless it was withdrawn.

Questions are taken in the order in which they came, one at a time: on a CPU a batch of four takes as long as four runs,
so that batching would only make the first session wait for the last.

Model: Smart Turn v3.2, ``smart-turn-v3.2-cpu.onnx`` (int8). Input ``[batch, 80, 800]`` float32: Whisper's log-mel
features of the last 8 s at 16 kHz, shorter sound preceded by zeros, the waveform of 128,000 samples scaled to mean 0
and variance 1 before. Output ``[batch, 1]``: the probability, not a logit in spite of its name.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import pcm16_to_float
from duologue.codecs.resample import VOICE_ACTIVITY_QUALITY, resample
from duologue.engine import metrics
from duologue.engine.executors.threads import run_in_thread

logger = logging.getLogger(__name__)

SAMPLE_RATE = 16_000
SECONDS = 8
"""How much of the end of a turn the model hears."""
SAMPLES = SAMPLE_RATE * SECONDS
MAX_WAITING = 64
"""Questions that may wait; the next one is answered with None at once."""
_VARIANCE_FLOOR = 1e-7

OnAnswer = Callable[[float | None], None]


class TurnModel(Protocol):
    """Judges one turn."""

    def finished(self, samples: NDArray[np.float32]) -> float:
        """Probability that the turn ``samples [n]`` (16 kHz, mono, up to the pause) is over."""


class SmartTurnModel:
    """The packaged ONNX model on one CPU thread. Raises what onnxruntime raises for an unusable file."""

    def __init__(self, path: Path) -> None:
        # Inference libraries: only when a model is loaded.
        import onnxruntime
        from faster_whisper.feature_extractor import FeatureExtractor

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Without VNNI (AVX2 and older AVX-512) products of unsigned and signed bytes overflow 16 bits, and answers
        # jump from 0.9 to 0.1. Unsigned products do not, and take no longer. Without effect on other processors.
        options.add_session_config_entry("session.x64quantprecision", "1")
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._mel = FeatureExtractor(feature_size=80, sampling_rate=SAMPLE_RATE, chunk_length=SECONDS)

    def finished(self, samples: NDArray[np.float32]) -> float:
        """See :class:`TurnModel`."""
        (output,) = self._session.run(None, {"input_features": self.features(samples)[None]})
        return float(output[0, 0])

    def features(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-mel features ``[80, 800]`` of the last 8 s of ``samples [n]`` at 16 kHz."""
        heard = samples[-SAMPLES:]
        window = np.concatenate([np.zeros(SAMPLES - len(heard), np.float32), heard])
        window = (window - window.mean()) / np.sqrt(window.var() + _VARIANCE_FLOOR)
        return np.asarray(self._mel(window, padding=0), np.float32)


class Question:
    """One question that waits for its answer. Used on the event loop."""

    def __init__(self, pcm: bytes, sample_rate: int, on_answer: OnAnswer) -> None:
        self.pcm = pcm
        self.sample_rate = sample_rate
        self.asked = time.monotonic()
        self._on_answer: OnAnswer | None = on_answer

    @property
    def withdrawn(self) -> bool:
        """Nobody waits for the answer: it has been given, or is not wanted any more."""
        return self._on_answer is None

    def withdraw(self) -> None:
        """The answer is not wanted any more. Idempotent, harmless after the answer."""
        if not self.withdrawn:
            metrics.turn_model_questions.labels("withdrawn").inc()
        self._on_answer = None

    def answer(self, probability: float | None, outcome: str) -> None:
        """Called by the service, on the event loop; counts the outcome unless the question was withdrawn."""
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is None:
            return
        metrics.turn_model_questions.labels(outcome).inc()
        metrics.turn_model_answer_s.observe(time.monotonic() - self.asked)
        on_answer(probability)


class TurnModelService:
    """Owner of the worker thread. Used on the event loop: ``await start()`` first, ``await close()`` last."""

    def __init__(self, load: Callable[[], TurnModel], max_waiting: int = MAX_WAITING) -> None:
        self._load = load
        self._max_waiting = max_waiting
        self._model: TurnModel | None = None
        self._waiting: deque[Question] = deque()
        self._work = threading.Condition()
        """Guards the queue and ``_closing``."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """Whether questions are answered."""
        return self._thread is not None and not self._closing

    async def start(self) -> None:
        """Load the model, run it once, start the worker. Raises what the loading raises."""

        def load() -> TurnModel:
            model = self._load()
            model.finished(np.zeros(SAMPLE_RATE, np.float32))
            return model

        self._loop = asyncio.get_running_loop()
        self._model = await run_in_thread(load, "turn-model-load")
        self._thread = threading.Thread(target=self._run, name="turn-model", daemon=True)
        self._thread.start()

    def ask(self, pcm: bytes, sample_rate: int, on_answer: OnAnswer) -> Question:
        """Is the turn ``pcm`` (mono PCM16 at ``sample_rate``, up to the pause) over? ``on_answer`` is told later."""
        question = Question(pcm, sample_rate, on_answer)
        with self._work:
            accepted = self.running and len(self._waiting) < self._max_waiting
            if accepted:
                self._waiting.append(question)
                self._work.notify()
        if not accepted:
            asyncio.get_running_loop().call_soon(question.answer, None, "refused")
        return question

    async def close(self) -> None:
        """Join the worker; what still waits is answered with None."""
        with self._work:
            self._closing = True
            self._work.notify()
        if self._thread is not None:
            await run_in_thread(self._thread.join, "turn-model-close")
            self._thread = None
        while self._waiting:
            self._waiting.popleft().answer(None, "refused")

    # -- worker --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (question := self._next()) is not None:
            probability, outcome = self._judge(question)
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(question.answer, probability, outcome)
            except RuntimeError:
                logger.debug("The event loop closed before the turn model did")

    def _next(self) -> Question | None:
        """The next question that somebody still asks; None: the service closes."""
        with self._work:
            while not self._closing:
                if not self._waiting:
                    self._work.wait()
                elif not (question := self._waiting.popleft()).withdrawn:
                    return question
        return None

    def _judge(self, question: Question) -> tuple[float | None, str]:
        assert self._model is not None
        began = time.monotonic()
        try:
            samples = pcm16_to_float(question.pcm[-2 * SECONDS * question.sample_rate :])
            heard = resample(samples, question.sample_rate, SAMPLE_RATE, VOICE_ACTIVITY_QUALITY)
            probability = self._model.finished(heard)
        except Exception:
            logger.exception("The turn model failed; silence decides instead")
            return None, "failed"
        metrics.turn_model_run_s.observe(time.monotonic() - began)
        return probability, "answered"
