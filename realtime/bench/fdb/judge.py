"""Judges of what was said: the rating of an answer to an interruption, and the behaviour over an overlap.

``http`` asks a model behind an OpenAI-style endpoint; ``local`` is deterministic arithmetic over words, for tests, and
its figures are comparable with nothing. The key comes from the environment (``JUDGE_API_KEY``) and reaches no file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import unicodedata
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

import msgspec

from duologue.realtime.bench.fdb.artifacts import write_json
from duologue.realtime.bench.fdb.dataset import AnnotationError, read_json

Behaviour = Literal["C_RESPOND", "C_RESUME", "C_UNCERTAIN_HANDLING", "C_UNKNOWN"]
BEHAVIOURS: Final[tuple[Behaviour, ...]] = get_args(Behaviour)
KEY_VARIABLE: Final = "JUDGE_API_KEY"
TRIES: Final = 3
MAX_TOKENS: Final = 512
VERDICTS_FILE: Final = "judge.json"

RATING_PROMPT: Final = """A voice assistant was interrupted. Rate from 0 to 5 how well its answer serves what the \
interrupting speech asks for, given what was talked about before: 0 has nothing to do with it, 5 answers it fully and \
to the point. Reply with one JSON object: {"score": NUMBER}."""
BEHAVIOUR_PROMPT: Final = """While a voice assistant was speaking, something else was heard. You get the words that \
the microphone heard and what the assistant said, once with the event and once without it. Say what the assistant did \
about the event:
C_RESPOND: it answered what was said in the event. C_RESUME: it went on with what it was saying, as without the event.
C_UNCERTAIN_HANDLING: it reacted, but asked back, apologised or stopped. C_UNKNOWN: none of these can be told.
Reply with one JSON object: {"label": LABEL}."""


class JudgeError(Exception):
    """The judge cannot be reached or gives no usable answer after all tries."""


class Overheard(msgspec.Struct, frozen=True):
    """Word lists of an overlap: microphone and assistant, with and without the event."""

    event: str
    noisy_input: str
    noisy_output: str
    clean_input: str
    clean_output: str


class Rating(msgspec.Struct, frozen=True):
    """0 to 5; ``unparsed`` answers came before it."""

    score: float | None
    unparsed: int = 0


class Judge(Protocol):
    kind: str
    fingerprint: str
    """Changes with anything that may change a verdict."""

    def rate(self, context: str, interrupt: str, answer: str) -> Rating:
        """Rate an answer. Raises :class:`JudgeError`."""

    def behaviour(self, heard: Overheard) -> Behaviour:
        """Label an overlap. Raises :class:`JudgeError`."""


# -- local -------------------------------------------------------------------------------------------------------------


def tokens(text: str) -> list[str]:
    """NFKC, case folded; each CJK ideograph alone, other runs of letters and digits."""
    return re.findall(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+", unicodedata.normalize("NFKC", text).casefold())


def overlap(reference: str, output: str) -> float:
    """Multiset overlap of tokens over the reference's; 0 for an empty reference."""
    expected, found = Counter(tokens(reference)), Counter(tokens(output))
    return (expected & found).total() / expected.total() if expected else 0.0


class LocalJudge:
    """Arithmetic over words; see ``docs/benchmarks.md``."""

    kind = "local"
    fingerprint = "local/1"

    def rate(self, context: str, interrupt: str, answer: str) -> Rating:
        return Rating(round(5 * overlap(interrupt, answer), 3))

    def behaviour(self, heard: Overheard) -> Behaviour:
        if not tokens(heard.noisy_output):
            return "C_UNKNOWN"
        if overlap(heard.clean_output, heard.noisy_output) >= 0.5:
            return "C_RESUME"
        if overlap(heard.event, heard.noisy_output) >= 0.3:
            return "C_RESPOND"
        return "C_UNCERTAIN_HANDLING"


# -- http --------------------------------------------------------------------------------------------------------------


class HttpJudge:
    """Chat completions at ``url`` (``.../v1``): temperature 0, three tries with growing pauses."""

    kind = "http"

    def __init__(self, url: str, model: str, *, timeout_s: float = 60.0, backoff_s: float = 1.0) -> None:
        self._url = url.rstrip("/") + "/chat/completions"
        self._model = model
        self._timeout_s = timeout_s
        self._backoff_s = backoff_s
        self.fingerprint = f"http/{model}/{MAX_TOKENS}"

    def rate(self, context: str, interrupt: str, answer: str) -> Rating:
        facts = {"before": context, "interrupting speech": interrupt, "answer": answer}
        for unparsed in range(TRIES):
            score = parse_score(self._ask(RATING_PROMPT, facts))
            if score is not None:
                return Rating(score, unparsed)
        return Rating(None, TRIES)

    def behaviour(self, heard: Overheard) -> Behaviour:
        for _ in range(TRIES):
            text = self._ask(BEHAVIOUR_PROMPT, msgspec.to_builtins(heard))
            found = re.search("|".join(BEHAVIOURS), text)
            if found is not None:
                return found.group()  # type: ignore[return-value]
        return "C_UNKNOWN"

    def _ask(self, prompt: str, facts: dict[str, str]) -> str:
        body = {
            "model": self._model,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "stream": False,
            "messages": [
                {"role": "system", "content": prompt},
                {"role": "user", "content": json.dumps(facts, ensure_ascii=False)},
            ],
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        last = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(self._backoff_s * 2 ** (attempt - 1))  # longer each time: the judge may be busy
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                    return str(json.load(reply)["choices"][0]["message"]["content"] or "")
            except (urllib.error.URLError, TimeoutError, ValueError, KeyError, IndexError, TypeError) as error:
                last = str(error) or type(error).__name__
        raise JudgeError(f"the judge at {self._url} gave no answer: {last}")


def parse_score(text: str) -> float | None:
    """A rating of 0 to 5: of the first JSON object in ``text``, else the first number; ``None`` if there is neither."""
    match = re.search(r"\{.*?\}", text, re.DOTALL)
    if match is not None:
        try:
            value = json.loads(match.group()).get("score")
        except ValueError:
            value = None
        text = str(value) if value is not None else text
    number = re.search(r"-?\d+(?:\.\d+)?", text)
    return None if number is None else min(5.0, max(0.0, float(number.group())))


# -- verdicts on disk --------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True):
    """A verdict, who gave it, and (as a hash) what it was about."""

    judge: str
    facts: str
    rating: Rating | None = None
    behaviour: Behaviour | None = None


class Verdicts:
    """Verdicts asked for once: each is kept beside its sample until judge, prompts or words change.

    Without a judge only those count that are there already, as when figures are computed again.
    """

    def __init__(self, judge: Judge | None) -> None:
        self._judge = judge

    def rating(self, folder: Path, context: str, interrupt: str, answer: str) -> Verdict | None:
        """The rating of an answer. Raises :class:`JudgeError`."""
        facts = _digest(RATING_PROMPT, context, interrupt, answer)
        known = self._known(folder, facts)
        if known is None and self._judge is not None:
            rating = self._judge.rate(context, interrupt, answer)
            known = _keep(folder, Verdict(self._judge.fingerprint, facts, rating=rating))
        return known

    def behaviour(self, folder: Path, heard: Overheard) -> Verdict | None:
        """The label of an overlap. Raises :class:`JudgeError`."""
        facts = _digest(BEHAVIOUR_PROMPT, *msgspec.structs.astuple(heard))
        known = self._known(folder, facts)
        if known is None and self._judge is not None:
            label = self._judge.behaviour(heard)
            known = _keep(folder, Verdict(self._judge.fingerprint, facts, behaviour=label))
        return known

    def _known(self, folder: Path, facts: str) -> Verdict | None:
        path = folder / VERDICTS_FILE
        if not path.is_file():
            return None
        try:
            verdict = read_json(path, Verdict)
        except AnnotationError:
            return None
        same_judge = self._judge is None or verdict.judge == self._judge.fingerprint
        return verdict if same_judge and verdict.facts == facts else None


def _keep(folder: Path, verdict: Verdict) -> Verdict:
    write_json(folder / VERDICTS_FILE, verdict)
    return verdict


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
