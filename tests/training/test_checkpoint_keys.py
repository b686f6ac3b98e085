"""The keys under which three stages keep unfinished work: all that such work depends on is in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Config
from steps import ppo_train, selfplay_generate, sft_train, storage
from steps.storage import schemas
from steps.tracking import NullTracker
from steps.training import backends
from steps.training.checkpoints import DirectoryCheckpoints
from tests.training.toys import example, toy_config, undecided_examples

STAGES = {
    "selfplay_generate": selfplay_generate,
    "sft_train": sft_train,
    "ppo_train": ppo_train,
}
TRAINERS = ("sft_train", "ppo_train")


class FoundError(Exception):
    """Ends a stage where it would begin to work; holds its key."""


Key = Callable[..., str]


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Key:
    """Stage and settings -> the key of a call over the data and the model in `tmp_path`."""

    def of_batches(store: Any, fingerprint: str) -> None:
        raise FoundError(fingerprint)

    def of_sft(config: Config, train: Any, rest: Any, source: str, key: str, **_: Any) -> None:
        raise FoundError(key)

    def of_ppo(config: Config, *, fingerprint: str, **_: Any) -> None:
        raise FoundError(fingerprint)

    monkeypatch.setattr(selfplay_generate, "Batches", of_batches)
    for name in ("_by_ranks", "_by_verl"):
        monkeypatch.setattr(sft_train, name, of_sft)
        monkeypatch.setattr(ppo_train, name, of_ppo)
    write_model(tmp_path / "model", weights=1)
    write_rows(tmp_path / "data", 32)

    def found(
        stage: str, config: Config, *, model_dir: str = str(tmp_path / "model"), **more: Any
    ) -> str:
        given: dict[str, Any] = {"out_dir": tmp_path / "out", "tracker": NullTracker(), **more}
        if stage in TRAINERS:
            given["checkpoints"] = DirectoryCheckpoints(tmp_path / "checkpoints")
        if stage == "sft_train":
            given["data_dir"] = tmp_path / "data"
        with pytest.raises(FoundError) as caught:
            getattr(STAGES[stage], stage)(config, model_dir=model_dir, **given)
        return str(caught.value)

    return found


def write_model(directory: Path, *, weights: int) -> None:
    directory.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer_config.json"):
        (directory / name).write_text(json.dumps({}))
    header = f'{{"w": {{"data_offsets": [0, {weights}]}}}}'.encode()
    file = len(header).to_bytes(8, "little") + header + bytes(weights)
    (directory / "model.safetensors").write_bytes(file)


def write_rows(directory: Path, num: int) -> None:
    storage.write_examples(directory / storage.TRAIN_FILE, undecided_examples(num))
    rest = [example("A", "Left", split="validation")]
    storage.write_examples(directory / storage.VALIDATION_FILE, rest)


def settings(changes: dict[str, Any] | None = None) -> Config:
    config = toy_config()
    config.selfplay.policy = "model"
    for name, value in (changes or {}).items():
        section, _, field = name.rpartition(".")
        setattr(getattr(config, section) if section else config, field, value)
    return config


COMMON = {
    "seed": 1,
    "env.max_turns": 2,
    "model.dtype": "bfloat16",
    "prompt.history": "full",
    "sampling.max_new_tokens": 5,
}
OWN = {
    "selfplay_generate": {
        "sampling.temperature": 0.5,
        "generation.max_span_chars": 7,
        "selfplay.group_size": 3,
        "selfplay.states": "self_belief",
    },
    "sft_train": {"sft.lr": 0.5, "sft.state_loss": "mask"},
    "ppo_train": {"ppo.lr": 0.5, "ppo.advantage": "token"},
}


@pytest.mark.parametrize(
    ("stage", "name", "value"),
    [(stage, name, value) for stage in STAGES for name, value in (COMMON | OWN[stage]).items()],
)
def test_a_setting_that_work_depends_on_moves_the_key(
    stage: str, name: str, value: Any, key: Key
) -> None:
    assert key(stage, settings({name: value})) != key(stage, settings())


@pytest.mark.parametrize("stage", STAGES)
def test_where_and_how_fast_is_in_no_key(stage: str, key: Key) -> None:
    others = {
        "workers": 2,
        "evaluation.puzzles": 9,
        "tracking.enabled": False,
        "generation.max_batch": 3,
        "sft.save_every": 7,
        "ppo.save_every": 7,
    }
    assert key(stage, settings(others)) == key(stage, settings())


@pytest.mark.parametrize("stage", STAGES)
def test_other_weights_in_the_same_directory_move_the_key(
    stage: str, key: Key, tmp_path: Path
) -> None:
    before = key(stage, settings())
    write_model(tmp_path / "model", weights=1)
    assert key(stage, settings()) == before
    write_model(tmp_path / "model", weights=2)
    assert key(stage, settings()) != before


def test_the_same_weights_in_another_directory_are_the_same_model(key: Key, tmp_path: Path) -> None:
    write_model(tmp_path / "moved", weights=1)
    for stage in STAGES:
        moved = key(stage, settings(), model_dir=str(tmp_path / "moved"))
        assert moved == key(stage, settings()), stage


@pytest.mark.parametrize("stage", ["selfplay_generate", "sft_train"])
def test_a_model_of_the_hub_is_told_by_name_and_revision(stage: str, key: Key) -> None:
    found = {
        key(stage, settings({"model.revision": revision}), model_dir=name)
        for name in ("owner/name", "owner/other")
        for revision in ("", "v2")
    }
    assert len(found) == 4


def test_other_rows_move_the_key_of_finetuning(key: Key, tmp_path: Path) -> None:
    before = key("sft_train", settings())
    write_rows(tmp_path / "data", 16)
    assert key("sft_train", settings()) != before


def test_the_same_rows_of_another_commit_and_configuration_are_the_same(
    key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key("sft_train", settings())
    files = [
        tmp_path / "data" / storage.TRAIN_FILE,
        tmp_path / "data" / storage.VALIDATION_FILE,
    ]
    bytes_before = [file.read_bytes() for file in files]
    monkeypatch.setattr(schemas, "git_commit", lambda: "abc-dirty")
    for file in files:
        storage.write_examples(file, storage.read_examples(file), config_digest="other")
    assert [file.read_bytes() for file in files] != bytes_before
    assert key("sft_train", settings()) == before


def test_other_validation_rows_move_the_key_of_finetuning(key: Key, tmp_path: Path) -> None:
    """The best step is chosen by them."""
    before = key("sft_train", settings())
    rest = [example("A", "Right", split="validation")]
    storage.write_examples(tmp_path / "data" / storage.VALIDATION_FILE, rest)
    assert key("sft_train", settings()) != before


@pytest.mark.parametrize("stage", ["selfplay_generate", "sft_train"])
def test_a_model_that_another_version_of_transformers_wrote_is_the_same(
    stage: str, key: Key, tmp_path: Path
) -> None:
    """A model from scratch is written anew by each attempt."""
    found = []
    for version, size in (("4.57.0", 1), ("5.0.0", 1), ("5.0.0", 2)):
        said = {"transformers_version": version, "hidden_size": size}
        (tmp_path / "model" / "config.json").write_text(json.dumps(said))
        found.append(key(stage, settings()))
    assert found[0] == found[1] != found[2]


def test_each_round_of_self_play_has_a_key(key: Key) -> None:
    first, second = (key("selfplay_generate", settings(), round_index=num) for num in (1, 2))
    assert first != second


NAMES = {"sft_train": "verl.sft_overrides", "ppo_train": "verl.overrides"}
OTHER = {"sft_train": "verl.overrides", "ppo_train": "verl.sft_overrides"}


@pytest.mark.parametrize("stage", TRAINERS)
def test_who_trains_and_with_what_of_its_own_moves_the_key(
    stage: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [key(stage, settings())]
    monkeypatch.setattr(STAGES[stage], "choose_backend", lambda config, of: "verl")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("0.9.1", {}),
        ("0.9.2", {}),
        ("0.9.2", {"verl.dtype": "float32"}),
        ("0.9.2", {NAMES[stage]: ["trainer.x=1"]}),
    ]
    for version, changes in cases:
        monkeypatch.setattr(backends, "installed", lambda version=version: {"verl": version})
        found.append(key(stage, settings(changes)))
    assert len(set(found)) == 5
    other = key(stage, settings({NAMES[stage]: ["trainer.x=1"], OTHER[stage]: ["a=1"]}))
    assert other == found[-1]
