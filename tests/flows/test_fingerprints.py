"""What a fingerprint depends on, and that it depends on every setting that a stage reads."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import conf
import envs
from conf import schema
from envs import math_data, sources
from steps import evaluate, filter_format, ppo_train, preflight, selfplay_generate, sft_train
from steps.orchestration import fingerprints
from steps.orchestration.fingerprints import SETTINGS, differences, fingerprint, parts_of
from steps.tracking import NullTracker
from steps.training import backends
from steps.training.backends import Facts
from steps.training.checkpoints import DirectoryCheckpoints

ROOT = Path(__file__).resolve().parents[2]
LAKE = ["envs.frozenlake"]
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
    assert changed(model__lora_alpha=8, verl__dtype="float32") == stages[2:]
    assert changed(workers=2, log_level="debug", tracking__enabled="false") == []
    assert changed(generation__max_batch=3, generation__enforce_eager="true") == []
    assert changed(sft__save_every=3, ppo__save_every=3) == []


CALLED = {"profile", "experiment", "cluster", *fingerprints.NAMES}
"""Settings that say what others are called that count."""


def test_every_setting_counts_in_a_stage_or_is_without_effect() -> None:
    one = config()
    counted = {key for stage in SETTINGS for key in fingerprints.settings_of(stage, one)}
    known = set(conf.flat(one))
    assert counted == {key for key in known if conf.has_effect(key)} - CALLED
    wholes = {f"{key.split('.')[0]}." for key in known}
    assert set(conf.WITHOUT_EFFECT) <= known | wholes


def test_vllm_counts_in_the_stages_that_it_may_play() -> None:
    def played(*overrides: str, model: str | None = "owner/name") -> list[str]:
        one = conf.compose(profile="smoke", model=model, overrides=list(overrides))
        return [s for s in SETTINGS if "vllm" in parts_of(s, one, before="")["versions"]]

    assert played() == played("generation.engine=vllm") == ["selfplay_generate", "evaluate"]
    assert played("generation.engine=hf") == played(model=None) == []


def test_xgrammar_counts_where_answers_are_forced() -> None:
    def forced(*overrides: str) -> list[str]:
        one = conf.compose(profile="smoke", model="owner/name", overrides=list(overrides))
        return [s for s in SETTINGS if "xgrammar" in parts_of(s, one, before="")["versions"]]

    assert forced("generation.constrained=true") == ["selfplay_generate"]
    assert forced() == []


def test_other_weights_in_the_same_directory_are_another_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    one = config(model=str(tmp_path))
    seen = []
    for text in ("of today", "of today", "of tomorrow"):
        (tmp_path / "model.safetensors").write_text(text)
        seen.append((chain(one), parts_of("evaluate", one, before="")))
    (first, parts), (same, _), (other, changed_parts) = seen
    assert first == same
    assert all(first[stage] != other[stage] for stage in SETTINGS)
    (line,) = differences(changed_parts, parts)
    assert line.startswith("model: ")


def test_another_revision_or_name_on_the_hub_is_another_model() -> None:
    def of(name: str, *overrides: str) -> dict[str, str]:
        return chain(conf.compose(profile="smoke", model=name, overrides=list(overrides)))

    base = of("owner/name")
    assert of("owner/name", "model.revision=main") == base
    for other in (of("owner/name", "model.revision=v2"), of("owner/other")):
        assert all(other[stage] != base[stage] for stage in SETTINGS)


@pytest.mark.parametrize(
    ("step", "section"), [("sft_train", "sft"), ("ppo_train", "ppo"), ("evaluate", "")]
)
def test_the_trainer_that_auto_chooses_is_a_setting(
    step: str, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    can_be_verl = ["ppo.lr_schedule=constant", "ppo.minibatch_size=16"]
    one = conf.compose(profile="smoke", model="owner/name", overrides=can_be_verl)
    assert (one.sft.backend, one.ppo.backend, one.device) == ("auto", "auto", "auto")
    seen = {}
    for num_gpus in (0, 1):
        found = Facts(parameters=10**9, gpus=num_gpus, has_verl=True)
        monkeypatch.setattr(backends, "facts", lambda config, found=found: found)
        seen[num_gpus] = parts_of(step, preflight.settled(one, step), before="")
    if not section:
        assert seen[0] == seen[1]
        return
    key = f"{section}.backend"
    assert [seen[num]["settings"][key] for num in (0, 1)] == ["local", "verl"]
    assert f"settings {key}: verl, was local" in differences(seen[1], seen[0])
    assert "verl" in seen[1]["versions"] and "verl" not in seen[0]["versions"]


def test_a_vllm_that_auto_may_choose_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    one = conf.compose(profile="smoke", model="owner/name")
    assert one.generation.engine == "auto"
    found = sources.version
    seen = []
    for number in ("0.24.0", "0.24.0+cu130", "0.25.0"):
        monkeypatch.setattr(
            sources,
            "version",
            lambda name, number=number: number if name == "vllm" else found(name),
        )
        seen.append({s: fingerprint(parts_of(s, one, before="")) for s in SETTINGS})
    assert seen[0] == seen[1]
    moved = [stage for stage in SETTINGS if seen[0][stage] != seen[2][stage]]
    assert moved == ["selfplay_generate", "evaluate"]


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
                for given in (str(folder), [str(folder)], {"easy": [str(folder / "water.txt")]})
            ]
        )
    assert seen[0] == seen[1]
    assert None not in seen[0]
    assert all(before != after for before, after in zip(seen[1], seen[2], strict=True))


def test_a_word_is_no_folder_of_the_working_directory(
    brook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "rows.txt").write_text("1")
    (tmp_path / "rows.txt").write_text("1")
    for named, is_path in (
        ("train", False),
        ("train/", True),
        (Path("train"), True),
        ("rows.txt", True),
        ("./train/rows.txt", True),
    ):
        assert ("rules content" in world(brook, rules=named)) is is_path, named


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
        "plain.py": "def f(x):\n    return x + 1\n",
        "told.py": '"""Module."""\n\ndef f(x):  # why\n    """What."""\n    return (x + 1)\n',
        "other.py": "def f(x):\n    return x + 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    digest = sources.code_digest
    assert digest(tmp_path / "plain.py") == digest(tmp_path / "told.py")
    assert digest(tmp_path / "plain.py") != digest(tmp_path / "other.py")


def code_of_game(env_id: str) -> dict[str, str]:
    """Evaluation's code with an environment."""
    env = dataclasses.replace(config().env, id=env_id, kwargs={})
    parts = parts_of("evaluate", dataclasses.replace(config(), env=env), before="")
    found: dict[str, str] = parts["code"]
    return found


def test_a_strangers_game_is_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = "from envs.frozenlake import FrozenLake\n\n\nclass Pond(FrozenLake):\n    depth = 1\n"
    (tmp_path / "pond.py").write_text(game)
    monkeypatch.syspath_prepend(tmp_path)
    code = code_of_game("pond:Pond")
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
    code = code_of_game("mill:Mill")
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
    found = sources._strangers("dam.game", place / "dam" / "game.py")
    own = {"dam.game:dam/__init__.py", "dam.game:dam/game.py", "dam.game:dam/deep/rules.py"}
    others = {"dam.game:library/__init__.py"} if folder == "anywhere" else set()
    assert set(found) == own | others


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of this project's code, which the fingerprints read in place of our own."""
    for name in ("envs", "steps"):
        for path in (ROOT / name).rglob("*.py"):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    monkeypatch.setattr(sources, "_ROOT", tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    """Files are read once a process: let them be read again."""
    for each in (sources.closure, sources._strangers, sources.code_digest):
        each.cache_clear()


TRAINED = {"sft_train", "ppo_train", "evaluate"}
"""Evaluation takes likelihoods by the trainers' code."""
RUN_BY = {
    "envs.frozenlake": set(SETTINGS),
    "envs.solvers": set(SETTINGS),  # `from envs import solvers` alone
    "steps.agent.success": TRAINED,  # of finetuning: `from steps.agent import success` alone
    "steps.agent.worldmodel": TRAINED,
    "steps.training.losses": TRAINED,
    "steps.training.ppo_local": {"ppo_train"},
    "steps.training.teacher_forced": TRAINED,  # imported in a function
    "steps.training.verl_hooks": {"sft_train", "ppo_train"},  # named in a text
    "steps.report.blocks": set(),
}
"""Module -> the stages of a lake whose results may change with it."""


def test_a_line_of_a_module_moves_the_stages_that_run_it(copied: Path) -> None:
    def codes() -> dict[str, dict[str, str]]:
        forget()
        return {stage: fingerprints.code_of(stage, LAKE) for stage in SETTINGS}

    before = codes()
    for module in RUN_BY:
        with (copied / f"{module.replace('.', '/')}.py").open("a", encoding="utf-8") as file:
            file.write("\nANOTHER = 1\n")
    after = codes()
    moved = {
        stage: {name for name in after[stage] if after[stage][name] != before[stage].get(name)}
        for stage in SETTINGS
    }
    assert moved == {
        stage: {module for module, stages in RUN_BY.items() if stage in stages}
        for stage in SETTINGS
    }


WEIR = {
    "weir/__init__.py": "",
    "weir/game.py": "from envs.frozenlake import FrozenLake\n\n\n"
    "class Weir(FrozenLake):\n    from weir_words import spoken\n",
    "weir/gates.py": "",  # imported by nothing: it may be loaded by its name
    "weir_words/__init__.py": "",
    "weir_words/spoken.py": "",
}


@pytest.fixture
def weir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A stranger's game in a package, which has another package beside it."""
    for name, text in WEIR.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "weir.game:Weir"
    for name in [name for name in sys.modules if name.startswith("weir")]:
        sys.modules.pop(name)
    envs._creator.cache_clear()
    forget()


def test_a_line_beside_a_strangers_game_moves_its_code(weir: str, tmp_path: Path) -> None:
    before = code_of_game(weir)
    for file, text in WEIR.items():
        (tmp_path / file).write_text(f"{text}\nANOTHER = 1\n")
        sources.code_digest.cache_clear()
        after = code_of_game(weir)
        moved = {name for name in after if after[name] != before.get(name)}
        assert moved == {f"weir.game:{file}"}
        before = after


SLUICE = {
    "sluice.py": "from envs.frozenlake import FrozenLake\nfrom sluice_gate import Gate\n\n\n"
    "def make(render_mode=None):\n    return Gate(FrozenLake(intended_prob=1.0))\n",
    "sluice_gate.py": "import gymnasium\n\n\nclass Gate(gymnasium.Wrapper):\n    pass\n",
}


@pytest.mark.parametrize("file", SLUICE)
def test_a_factory_and_its_wrappers_are_part_of_the_code(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in SLUICE.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = code_of_game("sluice:make")
    assert "envs.frozenlake" in before
    text = SLUICE[file].replace("1.0", "1 / 3").replace("pass", "depth = 1")
    (tmp_path / file).write_text(text)
    forget()
    after = code_of_game("sluice:make")
    moved = {name.partition(":")[2] for name in after if after[name] != before[name]}
    assert moved == {file}
    for name in ("sluice", "sluice_gate"):
        sys.modules.pop(name)
    envs._creator.cache_clear()
    forget()


def test_a_wrapper_of_elsewhere_is_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in SLUICE.items():
        place = tmp_path / name.removesuffix(".py")
        place.mkdir()
        (place / name).write_text(text)
        monkeypatch.syspath_prepend(place)
    assert {"sluice:sluice.py", "sluice_gate:sluice_gate.py"} <= set(code_of_game("sluice:make"))
    for name in ("sluice", "sluice_gate"):
        sys.modules.pop(name)
    envs._creator.cache_clear()


def test_a_games_libraries_count_by_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from envs.metamathqa import MetaMathQA\n\n\ndef make():\n    return MetaMathQA()\n"
    (tmp_path / "school.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for env_id in ("metamathqa", "spa/metamathqa", "school:make"):
        env = dataclasses.replace(config().env, id=env_id, kwargs={})
        parts = parts_of("evaluate", dataclasses.replace(config(), env=env), before="")
        assert {"math-verify", "sympy"} <= set(parts["versions"]), env_id
    assert "sympy" not in parts_of("evaluate", config(), before="")["versions"]


NO_RESULT = {
    "steps.preflight": "refuses before any work; the backend that it settles is a setting",
    "steps.training.verl_told": "refuses before any work",
    "steps.training.verl_judge": "refuses before any work",
}
"""Modules under `steps` that no stage's code has -> why a change of them changes no result."""


def test_every_module_is_some_stages_code_or_is_excused() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "steps").rglob("*.py")]
    modules = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    counted = {name for stage in SETTINGS for name in fingerprints.code_of(stage, LAKE)}
    silent = {name for name in modules if name.startswith(sources.SILENT)}
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
        assert imported <= set(fingerprints.code_of(stage, LAKE)), stage


def test_modules_that_are_loaded_by_name_count_where_they_are_named() -> None:
    both = {
        f"steps.training.{name}"
        for name in ("verl_hooks", "verl_head", "label_logprobs", "logits_kernels")
    }
    sft = {f"steps.training.{name}" for name in ("verl_sft_data", "verl_sft_driver")}
    assert both | sft <= set(fingerprints.code_of("sft_train", LAKE))
    assert both <= set(fingerprints.code_of("ppo_train", LAKE))
    assert not (both | sft) & set(fingerprints.code_of("filter_format", LAKE))


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
        left_out = {key for key in reads if not conf.has_effect(key) or key in fingerprints.NAMES}
        assert reads - known - left_out - READ_ONLY.get(stage, set()) == set()
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
