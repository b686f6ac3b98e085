"""What a fingerprint depends on, and that it depends on every setting that a stage reads."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import conf
import envs
from conf import schema
from envs import math_data
from envs.frozenlake import FrozenLake
from steps import evaluate, filter_format, ppo_train, selfplay_generate, sft_train
from steps.orchestration import fingerprints
from steps.orchestration.fingerprints import SETTINGS, differences, fingerprint, parts_of
from steps.tracking import NullTracker
from steps.training.checkpoints import DirectoryCheckpoints

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "workers=1",
    "device=cpu",
    "selfplay.env_groups=12",
    "selfplay.batches=1",
    "sft.max_steps=6",
    "sft.probe_puzzles=2",
    "ppo.total_steps=1",
    "ppo.env_groups=2",
    "ppo.probe_every=1",
    "ppo.probe_puzzles=2",
    "evaluation.puzzles=2",
    "evaluation.samples=2",
    "evaluation.pass_k=[1,2]",
    "evaluation.greedy=true",
    "evaluation.teacher_forced_puzzles=2",
    "sampling.max_new_tokens=70",
]
WITHOUT_EFFECT = {"workers", "device", "branches", "log_level", *fingerprints.NAMES}
"""They change where and how fast, what it is called, or the order of sums; nothing else."""
READ_ONLY = {"selfplay_generate": {"sft.state_loss"}}
"""`strip` begins after self-play, which asks the same function for its prompt."""


def config(**changes: Any) -> conf.Config:
    return conf.compose(profile="smoke", overrides=SMALL, **changes)


def chain(one: conf.Config) -> dict[str, str]:
    found, before = {}, ""
    for stage in SETTINGS:
        before = found[stage] = fingerprint(parts_of(stage, one, before=before))
    return found


def changed(**changes: Any) -> list[str]:
    """Stages whose fingerprints a change of overrides moves."""
    base = chain(conf.compose(profile="smoke"))
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    other = chain(conf.compose(profile="smoke", overrides=overrides))
    return [stage for stage in SETTINGS if base[stage] != other[stage]]


def test_a_setting_moves_its_stage_and_those_after_it() -> None:
    stages = list(SETTINGS)
    assert changed(ppo__lr=0.5) == stages[3:]
    assert changed(sft__lr=0.5) == stages[2:]
    assert changed(filter__min_yield=0.5) == stages[1:]
    assert changed(sampling__temperature=0.5) == changed(env__max_turns=3) == stages
    assert changed(evaluation__puzzles=9) == stages[4:]
    assert changed(workers=2, log_level="debug", tracking__enabled="false") == []


def test_vllm_counts_in_the_stages_that_it_may_play() -> None:
    def played(*overrides: str, model: str | None = "owner/name") -> list[str]:
        one = conf.compose(profile="smoke", model=model, overrides=list(overrides))
        return [s for s in SETTINGS if "vllm" in parts_of(s, one, before="")["versions"]]

    assert played() == played("generation.engine=vllm") == ["selfplay_generate", "evaluate"]
    assert played("generation.engine=hf") == played(model=None) == []


def test_an_ids_own_arguments_count_as_much_as_given_ones() -> None:
    lake = parts_of("evaluate", config(), before="")
    still = parts_of("evaluate", config(env="frozenlake_deterministic"), before="")
    assert lake["world"]["intended_prob"] == "0.8" and still["world"]["intended_prob"] == "1.0"
    assert "world intended_prob: 0.8, was 1.0" in differences(lake, still)


GAME = """
from envs.frozenlake import FrozenLake


class Brook(FrozenLake):
    def __init__(self, rules, size=4):
        super().__init__(size=size)
"""


@pytest.fixture
def brook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A stranger's game with an argument that must be given."""
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "brook.py").write_text(GAME)
    monkeypatch.syspath_prepend(tmp_path / "games")
    yield "brook:Brook"
    sys.modules.pop("brook", None)
    envs._creator.cache_clear()


def world(env_id: str, **kwargs: Any) -> dict[str, str]:
    env = dataclasses.replace(config().env, id=env_id, kwargs=kwargs)
    found: dict[str, str] = parts_of("evaluate", dataclasses.replace(config(), env=env), before="")[
        "world"
    ]
    return found


def test_a_file_counts_by_what_is_in_it(tmp_path: Path) -> None:
    data, seen = tmp_path / "rows.jsonl", []
    for time, answer in enumerate(("4", "4", "5")):
        data.write_text(json.dumps({"query": "2 + 2?", "response": f"The answer is: {answer}"}))
        os.utime(data, ns=(time, time))
        given = {"data": str(data), "check": "exact"}
        seen.append(
            (world("metamathqa", **given), world("metamathqa", **given | {"data": str(tmp_path)}))
        )
    assert seen[0] == seen[1]
    for before, after in zip(seen[0], seen[2], strict=True):
        assert {key for key in after if before[key] != after[key]} == {
            "data content",
            "data_digest",
        }


def test_a_folder_that_only_a_strangers_game_knows_counts_too(brook: str, tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    seen = []
    for text in ("deep", "deep", "shallow"):
        (folder / "water.txt").write_text(text)
        seen.append(
            [
                world(brook, rules=given).get("rules content")
                for given in (str(folder), [str(folder)])
            ]
        )
    assert seen[0] == seen[1]
    assert None not in seen[0]
    assert all(before != after for before, after in zip(seen[1], seen[2], strict=True))


@pytest.mark.parametrize("text", ["", ".", "..", "~", "/", "#", "x" * 9999, "a\0b", 3, None])
def test_what_names_no_file_has_no_content(brook: str, text: Any) -> None:
    assert "rules content" not in world(brook, rules=text)


def test_the_shipped_sample_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, other = world("metamathqa", check="exact"), tmp_path / "sample.jsonl"
    other.write_text(math_data.SAMPLE.read_text().replace("answer is: 5", "answer is: 6"))
    monkeypatch.setattr(math_data, "SAMPLE", other)
    assert differences(world("metamathqa", check="exact"), before)[0].startswith("data_digest: ")


def test_differences_name_what_is_new_gone_and_other() -> None:
    ours = {"settings": {"a": 1, "b": 2}, "input": "x"}
    theirs = {"settings": {"a": 1, "b": 3, "c": 4}, "input": "y"}
    assert differences(ours, theirs) == [
        "input: x, was y",
        "settings b: 2, was 3",
        "settings c: not there, was 4",
    ]


def test_a_docstring_is_no_code(tmp_path: Path) -> None:
    texts = {
        "plain": "def f(x):\n    return x + 1\n",
        "told": '"""Module."""\n\ndef f(x):  # why\n    """What."""\n    return (x + 1)\n',
        "other": "def f(x):\n    return x + 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    digest = fingerprints._code_digest
    assert digest(tmp_path / "plain") == digest(tmp_path / "told") != digest(tmp_path / "other")


def test_a_strangers_game_is_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = "from envs.frozenlake import FrozenLake\n\n\nclass Pond(FrozenLake):\n    depth = 1\n"
    (tmp_path / "pond.py").write_text(game)
    monkeypatch.syspath_prepend(tmp_path)
    game = type(envs.make("pond:Pond").unwrapped)
    code = fingerprints.code_of("evaluate", game)
    assert {"pond:pond.py", "envs.frozenlake", "steps.evaluate", "steps.agent.prompts"} <= set(code)


def test_a_strangers_rules_beside_its_game_are_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "mill.py": "import mill_rules\nfrom envs.frozenlake import FrozenLake\n\n\n"
        "class Mill(FrozenLake):\n    pass\n",
        "mill_rules.py": "def f():\n    from mill_words import short\n"
        "    import envs.countdown_solver\n",
        "mill_words/__init__.py": "",
        "mill_words/short.py": "from . import letters\nfrom .sounds import loud\n",
        "mill_words/letters.py": "",
        "mill_words/sounds.py": "loud = 1\n",
        "mill_words/unused.py": "",
        "unused.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    code = fingerprints.code_of("evaluate", type(envs.make("mill:Mill").unwrapped))
    theirs = {name.removeprefix("mill:") for name in code if name.startswith("mill:")}
    assert theirs == {name for name in texts if "unused" not in name}
    assert "envs.countdown_solver" in code


@pytest.mark.parametrize("folder", ["site-packages", "anywhere"])
def test_of_installed_packages_only_the_games_own_counts(folder: str, tmp_path: Path) -> None:
    place = tmp_path / folder
    for name in ("dam", "library"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text("import library\n")
    (place / "dam" / "game.py").write_text("from dam.deep import rules\n")
    (place / "dam" / "deep").mkdir()
    (place / "dam" / "deep" / "rules.py").write_text("")
    found = fingerprints._strangers_modules("dam.game", place / "dam" / "game.py")
    own = {"dam.game:dam/__init__.py", "dam.game:dam/game.py", "dam.game:dam/deep/rules.py"}
    others = {"dam.game:library/__init__.py"} if folder == "anywhere" else set()
    assert set(found) == own | others


NO_RESULT = {
    "steps.preflight": "refuses before any work; the backend that it settles is a setting",
}
"""Modules under `steps` that no stage's code has -> why a change of them changes no result."""


def test_every_module_is_some_stages_code_or_is_excused() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "steps").rglob("*.py")]
    modules = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    counted = {name for stage in SETTINGS for name in fingerprints.code_of(stage, FrozenLake)}
    silent = {name for name in modules if name.startswith(fingerprints.SILENT)}
    assert modules - counted - silent == set(NO_RESULT)


def test_a_stages_code_has_what_its_step_of_the_flow_calls() -> None:
    tree = ast.parse((ROOT / "flows" / "spa_flow.py").read_text("utf-8"))
    steps = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for stage in SETTINGS:
        imported = {
            node.module
            for node in ast.walk(steps[stage])
            if isinstance(node, ast.ImportFrom)
            and node.module
            and node.module != "steps.report.blocks"
        }
        assert len(imported) == 1
        assert imported <= set(fingerprints.code_of(stage, FrozenLake)), stage


def test_modules_that_are_loaded_by_name_count_where_they_are_named() -> None:
    both = {
        f"steps.training.{name}"
        for name in ("verl_hooks", "verl_head", "label_logprobs", "logits_kernels")
    }
    sft = {f"steps.training.{name}" for name in ("verl_sft_data", "verl_sft_driver")}
    assert both | sft <= set(fingerprints.code_of("sft_train", FrozenLake))
    assert both <= set(fingerprints.code_of("ppo_train", FrozenLake))
    assert not (both | sft) & set(fingerprints.code_of("filter_format", FrozenLake))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Dotted keys of the settings that modules of `steps` read."""
    found: set[str] = set()
    prefixes = {
        type(getattr(schema.Config(), field.name)): f"{field.name}."
        for field in dataclasses.fields(schema.Config)
        if dataclasses.is_dataclass(getattr(schema.Config(), field.name))
    }
    for cls, prefix in {schema.Config: "", **prefixes}.items():
        names = {field.name for field in dataclasses.fields(cls)}

        def recorded(self: Any, name: str, names: set[str] = names, prefix: str = prefix) -> Any:
            value = object.__getattribute__(self, name)
            reader = sys._getframe(1).f_code.co_filename
            if name in names and reader.startswith(str(ROOT / "steps")):
                if not dataclasses.is_dataclass(value):
                    found.add(prefix + name)
            return value

        monkeypatch.setattr(cls, "__getattribute__", recorded)
    yield found


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["spa", "vanilla_rl", "vagen_reward"])
def test_no_stage_reads_a_setting_that_its_fingerprint_leaves_out(
    experiment: str, tmp_path: Path, reads: set[str]
) -> None:
    one, tracker = config(experiment=experiment), NullTracker()
    checkpoints = DirectoryCheckpoints(tmp_path / "checkpoints")
    at = {stage: tmp_path / stage for stage in SETTINGS}
    known: set[str] = set()

    def check(stage: str) -> None:
        known.update(fingerprints.settings_of(stage, one))
        tracked = {key for key in reads if key.startswith("tracking.")}
        assert reads - known - WITHOUT_EFFECT - tracked - READ_ONLY.get(stage, set()) == set()
        reads.clear()

    reads.clear()
    played = selfplay_generate.selfplay_generate(
        one, model_dir="", out_dir=at["selfplay_generate"], tracker=tracker
    )
    check("selfplay_generate")
    filter_format.filter_format(
        one,
        trajectories=[at["selfplay_generate"] / played["file"]],
        out_dir=at["filter_format"],
        tracker=tracker,
    )
    check("filter_format")
    common: Any = {"checkpoints": checkpoints, "tracker": tracker}
    sft = sft_train.sft_train(
        one, data_dir=at["filter_format"], model_dir="", out_dir=at["sft_train"], **common
    )
    check("sft_train")
    ppo = ppo_train.ppo_train(one, model_dir=sft["model"], out_dir=at["ppo_train"], **common)
    check("ppo_train")
    models = {"after_sft": sft["model"], "final": ppo["model"]}
    evaluate.evaluate(one, model_dirs=models, out_dir=at["evaluate"], tracker=tracker)
    check("evaluate")
