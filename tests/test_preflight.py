"""What is refused before any work, beyond words and ranges of settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import envs
from conf import compose
from conf.schema import Config
from steps import preflight
from steps.errors import ConfigError, ModelError, SPAError
from steps.policies import engines
from steps.training import backends

QUIET = "tracking.enabled=false"


def smoke(*overrides: str, model: str | None = None, profile: str = "smoke") -> Config:
    return compose(profile=profile, model=model, overrides=[QUIET, *overrides])


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory with the files of a model, as far as they are looked at before it is loaded."""
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({}))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return tmp_path


def test_what_can_be_run_passes(model_dir: Path) -> None:
    for config in (smoke(), smoke(model=str(model_dir)), smoke(model="owner/name")):
        preflight.check(config)


@pytest.mark.parametrize(
    ("overrides", "model", "gpus", "vllm", "workers", "who"),
    [
        (["generation.engine=hf", "ppo.backend=verl"], "a/b", 2, "", 16, "verl"),
        (["ppo.backend=local"], "a/b", 1, "", 16, "vLLM"),
        (["ppo.backend=local"], "a/b", 1, "", 1, None),
        (["ppo.backend=local"], "a/b", 0, "", 16, None),
        (["ppo.backend=local"], "a/b", 1, "no vLLM", 16, None),
        (["ppo.backend=local", "device=cpu"], "a/b", 1, "", 16, None),
        ([], None, 1, "", 16, None),  # tiny models share a GPU
    ],
)
def test_branches_that_would_take_the_same_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], model: str | None, gpus: int,
    vllm: str, workers: int, who: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(backends, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(engines, "_fault", lambda: vllm)
    verl = ["ppo.lr_schedule=constant", "ppo.minibatch_size=16", "ppo.optimizer=adamw"]
    config = smoke("sft.backend=local", *verl, *overrides, model=model)
    preflight.check_together([config], workers)
    other = replace(config, env=replace(config.env, id="sokoban"))
    if who is None:
        preflight.check_together([config, other], workers)
        return
    with pytest.raises(ConfigError, match=f"frozenlake,sokoban .*{who} would.*--max-workers 1"):
        preflight.check_together([config, other], workers)


@pytest.mark.parametrize("profile", ["single_gpu", "multi_gpu", "paper"])
def test_a_profile_whose_trainer_isnt_there_says_so(profile: str) -> None:
    with pytest.raises(ConfigError, match=rf"needs a CUDA GPU.*profile {profile}"):
        preflight.check(smoke(profile=profile))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("ppo.backend=verl", r"ppo by verl: the model built from scratch is a GPT-2"),
        ("model.lora_rank=4", r"model\.lora_rank is 4, which verl alone trains"),
        ("model.lora_rank=4 sft.backend=local", r"model\.lora_rank is 4"),
        ("env.kwargs.size=1", "size is 1"),
        ("evaluation.puzzles=9 env.kwargs.size=2", r"evaluation\.puzzles=9 on frozenlake: .*found"),
        ("sft.probe_puzzles=9 env.kwargs.size=2 evaluation.puzzles=1", r"sft\.probe_puzzles=9"),
    ],
)
def test_what_a_stage_would_fail_at_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        preflight.check(smoke(*override.split()))


@pytest.mark.parametrize(("sees_gpu", "engine"), [(True, "vllm"), (False, "hf")])
@pytest.mark.parametrize("step", ["selfplay_generate", "sft_train", "evaluate"])
def test_who_answers_is_settled_where_play_is(
    step: str, sees_gpu: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_fault", lambda: "")
    monkeypatch.setattr(engines, "_sees_gpu", lambda: sees_gpu)
    config = smoke("device=auto", "generation.engine=auto", model="owner/name")
    assert preflight.settled(config, step).generation.engine == engine
    assert preflight.settled(config, "filter_format").generation.engine == "auto"


WORDY = """
from envs.frozenlake import FrozenLake


class Wordy(FrozenLake):
    def __init__(self, names=(), state="", broken=False, values=5):
        super().__init__()
        self.values = values
        self.broken = broken
        self.names, self.words = names, state
        self.action_names = (*self.action_names, *names)

    def describe(self, state_format="grid_coords"):
        if self.broken:
            raise KeyError("cellar")
        return self.words or super().describe(state_format)

    def step(self, action):
        if self.values == 0:
            raise SystemExit(3)
        return super().step(action)[-self.values:]
"""


@pytest.fixture
def wordy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A stranger's lake with actions and states of one's own."""
    (tmp_path / "wordy.py").write_text(WORDY)
    monkeypatch.syspath_prepend(tmp_path)
    yield "wordy:Wordy"
    sys.modules.pop("wordy", None)
    envs._creator.cache_clear()


@pytest.mark.parametrize(
    ("kwargs", "overrides", "words"),
    [
        ({"names": ["go down || now"]}, [], r"'go down \|\| now' of wordy:Wordy is read back"),
        ({"names": ["<answer>"]}, [], "'<answer>' of wordy:Wordy"),
        ({"names": ["to the left"]}, ["env.action_separator=the"], "separator='the'"),
        ({"broken": True}, [], r"wordy:Wordy raised KeyError\('cellar'\) in .*wordy\.py:"),
        ({"values": 4}, [], r"wordy:Wordy's step\(\) returned 4 values, not \(observation"),
        ({"values": 0}, [], r"wordy:Wordy raised SystemExit\(3\) in step\(\)"),
        ({"state": {"room": 1}}, [], r"describe\('grid'\) of wordy:Wordy is \{'room': 1\}"),
        ({"state": "a <observation> of it"}, [], "holds a tag of the answer format, 'observation'"),
        (
            {"state": "a dark cellar"},
            ["prompt.random_coords=true", "prompt.state_shown=coords"],
            "the first state of wordy:Wordy has none",
        ),
    ],
)
def test_a_world_whose_words_the_format_cant_hold_is_refused(
    wordy: str, kwargs: dict[str, Any], overrides: list[str], words: str
) -> None:
    config = compose(env=wordy, profile="smoke", overrides=[QUIET, *overrides])
    config.env.kwargs = kwargs
    with pytest.raises(SPAError, match=words):
        preflight._check_words(config)


def test_a_separator_that_stands_in_sudokus_moves_is_refused() -> None:
    preflight._check_words(compose(env="sudoku", profile="smoke", overrides=[QUIET]))
    config = compose(env="sudoku", profile="smoke", overrides=[QUIET, "env.action_separator=','"])
    with pytest.raises(ConfigError, match=r"the action '\d,\d,1' of sudoku is read back"):
        preflight._check_words(config)


def test_actions_of_several_words_and_any_case_are_held(wordy: str) -> None:
    config = compose(env=wordy, profile="smoke", overrides=[QUIET])
    config.env.kwargs = {"names": ["pick up the key", "OPEN the chest", "wait | see", "up"]}
    preflight._check_words(config)


def test_states_that_a_model_built_here_cant_read_are_refused_with_the_override(
    wordy: str,
) -> None:
    overrides = [QUIET, "evaluation.puzzles=1", "sft.probe_puzzles=1", "ppo.probe_every=0"]
    config = compose(env=wordy, profile="smoke", overrides=overrides)
    config.env.kwargs = {"state": "#" * 200}
    said = r"10 of 10 turns of random play on wordy:Wordy have more than 256 tokens \(the longest "
    with pytest.raises(ConfigError, match=said) as found:
        preflight.check(config)
    better = re.findall(r"(?:model|sampling)\.\w+=\d+", str(found.value))
    assert len(better) == 3
    mended = compose(env=wordy, profile="smoke", overrides=[*overrides, *better])
    mended.env.kwargs = config.env.kwargs
    preflight.check(mended)


def test_a_gpu_that_isnt_there_is_missed_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "visible_gpus", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="device is cuda, but torch sees no GPU"):
        preflight.check(smoke("device=cuda"))
    elsewhere = smoke("device=cuda")
    elsewhere.cluster = "kubernetes"
    preflight.check(elsewhere)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # by another driver's files
    preflight.check(smoke("device=cuda"))


def test_a_directory_that_is_no_model_is_refused(model_dir: Path) -> None:
    (model_dir / "tokenizer_config.json").write_text("{torn")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json' can't be read"):
        preflight.check(smoke(model=str(model_dir)))
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"missing .*safetensors"):
        preflight.check(smoke(model=str(model_dir)))


@pytest.mark.parametrize("size", [0, 4, 1_000, 100_000, "longer", "text"])
def test_weights_that_broke_off_are_refused_as_a_torn_config_is(
    size: int | str, tmp_path: Path
) -> None:
    from steps.training.tiny_model import build_tiny

    model = str(build_tiny(smoke().model, tmp_path / "model"))
    preflight.check(smoke(model=model))
    file = tmp_path / "model" / "model.safetensors"
    whole = file.read_bytes()
    other = {"longer": whole + b"more", "text": b"version https://git-lfs.github.com/spec/v1"}
    file.write_bytes(other[size] if isinstance(size, str) else whole[:size])
    with pytest.raises(ModelError, match=r"model\.safetensors' can't be read \(.*save_pretrained"):
        preflight.check(smoke(model=model))


def test_the_template_of_models_is_no_model() -> None:
    with pytest.raises(ConfigError, match="model 'hf' has no path"):
        preflight.check(smoke(model="hf"))


def test_it_loads_no_torch() -> None:
    root = Path(preflight.__file__).parents[1]
    code = "import sys, steps.preflight; print({'torch', 'mlflow', 'pyarrow'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
