"""Pieces as bytes: what goes in comes out, and nothing undeclared goes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scripted_stages import Block, Undeclared

from duologue.codecs.harmonic_noise import AcousticFrames
from duologue.engine.connectors.pieces import PieceError, PieceTypes
from duologue.engine.pipeline import get_pipeline
from duologue.engine.requests import (
    AudioDelta,
    ChatMessage,
    Converse,
    Delta,
    EngineRequest,
    Finished,
    Payload,
    Usage,
    WordSpan,
)
from duologue.engine.stage import StageFinish
from duologue.engine.stages.pieces import FrameWord, SpokenClause


@dataclass(frozen=True)
class Holder:
    value: Any


def there_and_back(types: PieceTypes, piece: Any) -> Any:
    buffers, size = types.encode(piece)
    data = b"".join(buffers)
    assert len(data) == size
    return types.decode(data)


@pytest.mark.parametrize(
    "piece",
    [
        "text",
        b"bytes",
        AudioDelta(pcm=b"\1\2", words=(WordSpan(text_start=0, text_end=2, end_sample=7),)),
        Usage(input_tokens=1),
        StageFinish(),
        EngineRequest(
            request_id="r", session_id="s", payload=Converse(messages=(ChatMessage(role="user", text="hä"),), seed=3)
        ),
    ],
)
def test_what_every_pipeline_hands_on_comes_back_equal(piece: Any) -> None:
    assert there_and_back(PieceTypes(), piece) == piece


def test_every_payload_and_delta_can_be_handed_on() -> None:
    kinds = {*get_args(Payload), *get_args(Delta)} - {Finished}
    assert kinds <= set(PieceTypes()._types)


def test_a_clause_of_the_packaged_talker_comes_back() -> None:
    turned = np.arange(601 * 5, dtype=np.float32).reshape(601, 5).T
    clause = SpokenClause(
        AcousticFrames(*[turned] * 5, np.full(5, 120, np.float32)), (FrameWord(0, 3, 4), FrameWord(4, 6, 5)), 0.2
    )
    types = PieceTypes(name for stage in get_pipeline("assistant").stages for name in stage.emits)
    back = there_and_back(types, clause)
    assert (back.words, back.pause_s) == (clause.words, clause.pause_s)
    assert np.array_equal(back.frames.residual_phase, turned)
    assert np.array_equal(back.frames.f0, clause.frames.f0)


@given(
    values=arrays.arrays(np.float32, arrays.array_shapes(max_dims=2, min_side=0, max_side=40)),
    turned=arrays.arrays(np.int16, arrays.array_shapes(max_dims=3, min_side=0, max_side=9)),
)
def test_arrays_come_back_whatever_their_shape(values: Any, turned: Any) -> None:
    back = there_and_back(PieceTypes(["scripted_stages:Block"]), Block(1, values.T, turned.T))
    for mine, its in ((values.T, back.values), (turned.T, back.turned)):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        assert mine.tobytes() == its.tobytes()


@pytest.mark.parametrize("samples", [np.arange(5, dtype=np.float32), np.zeros((0, 3), np.int16)])
def test_a_bare_array_is_a_piece(samples: Any) -> None:
    back = there_and_back(PieceTypes(), samples)
    assert (back.dtype, back.shape, back.tolist()) == (samples.dtype, samples.shape, samples.tolist())


def test_arrays_start_at_multiples_of_64_bytes() -> None:
    types = PieceTypes(["scripted_stages:Block"])
    buffers, _ = types.encode(Block(1, np.ones(3, np.float32), np.ones(5, np.int16)))
    data = np.frombuffer(b"\0" * 64 + b"".join(buffers), np.uint8)[64:]
    block = types.decode(memoryview(data))
    start = data.ctypes.data
    assert [(block.values.ctypes.data - start) % 64, (block.turned.ctypes.data - start) % 64] == [0, 0]


def test_an_undeclared_type_is_refused_by_name() -> None:
    with pytest.raises(PieceError, match="'Undeclared' is not declared in the pipeline's 'emits'"):
        PieceTypes().encode(Undeclared(1))


@pytest.mark.parametrize("value", [object(), np.array([object()])])
def test_what_has_no_plain_form_is_refused(value: Any) -> None:
    types = PieceTypes()
    types._index[Holder] = 0
    with pytest.raises(PieceError, match=r"'Holder' holds a '(object|ndarray)', which cannot be sent"):
        types.encode(Holder(value))


def test_a_type_that_is_not_there_is_refused() -> None:
    with pytest.raises(PieceError, match="'scripted_stages:Nothing' is not a class"):
        PieceTypes(["scripted_stages:Nothing"])


@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        PieceTypes(["scripted_stages:Block"]).decode(data)
    except PieceError:
        pass
