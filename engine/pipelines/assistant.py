"""The packaged voice assistant: recogniser, language model, talker and codec, all small enough for two CPU cores.

A spoken turn is two requests, so that a session can decide in between: :class:`Transcribe` enters and ends at the
recogniser, :class:`Converse` enters at the language model. :class:`Speak` enters at the talker.
"""

from __future__ import annotations

from typing import Final

from duologue.engine.pipeline import (
    Capabilities,
    ExecutionType,
    PipelineConfig,
    StageConfig,
    register_pipeline,
    register_stage,
)
from duologue.engine.requests import Converse, Speak, Transcribe

register_stage("WhisperRecogniser", "duologue.engine.stages.recogniser:WhisperRecogniser")
register_stage("LlamaCppLanguageModel", "duologue.engine.stages.language.llamacpp:LlamaCppLanguageModel")
register_stage("OpenAILanguageModel", "duologue.engine.stages.language.openai:OpenAILanguageModel")
register_stage("TransformersLanguageModel", "duologue.engine.stages.language.transformers:TransformersLanguageModel")
register_stage("VllmLanguageModel", "duologue.engine.stages.language.vllm:VllmLanguageModel")
register_stage("HibariTalker", "duologue.engine.stages.talker:HibariTalker")
register_stage("HarmonicNoiseCodec", "duologue.engine.stages.codec:HarmonicNoiseCodec")

LANGUAGE_MODELS: Final = {
    "llamacpp": "LlamaCppLanguageModel",
    "openai": "OpenAILanguageModel",
    "transformers": "TransformersLanguageModel",
    "vllm": "VllmLanguageModel",
}
"""Backends of the language model, see :mod:`duologue.engine.stages.language`."""

ASSISTANT: Final = register_pipeline(
    PipelineConfig(
        name="assistant",
        default_deploy="assistant.yaml",
        capabilities=Capabilities(audio_in=True, audio_out=True, transcript_logprobs=True, voice_languages=("en",)),
        stages=(
            StageConfig(
                stage_id=0,
                name="recogniser",
                model_arch="WhisperRecogniser",
                model="whisper-tiny.en",
                accepts=(Transcribe,),
                max_num_seqs=16,
                owns_tokenizer=True,
                final_output=True,
                final_output_type="text",
            ),
            StageConfig(
                stage_id=1,
                name="language_model",
                model_arch="LlamaCppLanguageModel",
                backends=LANGUAGE_MODELS,
                model="smollm2-135m-instruct",
                execution_type=ExecutionType.LLM_AR,
                accepts=(Converse,),
                full_processor="duologue.engine.chunking:join_text",
                max_num_seqs=8,
                owns_tokenizer=True,
                final_output=True,
                final_output_type="text",
            ),
            StageConfig(
                stage_id=2,
                name="talker",
                model_arch="HibariTalker",
                model="hibari-heart",
                input_sources=(1,),
                accepts=(Speak,),
                emits=("duologue.engine.stages.pieces:SpokenClause",),
                voices=("heart",),
                max_num_seqs=2,
            ),
            StageConfig(
                stage_id=3,
                name="codec",
                model_arch="HarmonicNoiseCodec",
                input_sources=(2,),
                max_num_seqs=2,
                final_output=True,
                final_output_type="audio",
            ),
        ),
    )
)
