import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import conf
from conf import ConfigError, compose
from steps.training.verl_ppo_limits import lacks


def test_later_groups_win_over_earlier_ones() -> None:
    config = compose(profile="laptop", experiment="vanilla_rl", model="tiny")
    assert config.ppo.weight_decay == 0.01  # base
    assert config.env.id == "frozenlake"  # env
    assert config.env.max_turns == 10  # model over base's 5
    assert config.ppo.gamma == 0.9  # profile over base's 1.0
    assert config.sft.max_steps == 200  # experiment over the profile's 1000
    assert config.prompt.response_format == "plain"  # experiment over base
    assert compose(overrides=["env.max_turns=3"]).env.max_turns == 3  # override over model


def test_learning_rates_of_the_tiny_model_stay_away_from_other_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = compose(profile="laptop", model=str(tmp_path))
    assert (config.sft.lr, config.ppo.lr, config.ppo.critic_lr) == (1e-4, 1e-6, 1e-5)
    assert config.model.path == str(tmp_path)
    assert config.model.name == tmp_path.name
    assert not config.model.from_scratch
    assert config.prompt.style == "full"


def test_the_paper_profile_holds_the_published_numbers() -> None:
    config = compose(profile="paper")
    assert config.model.path == "Qwen/Qwen2.5-1.5B-Instruct"
    selfplay = config.selfplay
    assert selfplay.env_groups * selfplay.group_size * selfplay.batches == 1280
    sft = config.sft
    assert (sft.lr, sft.batch_size, sft.epochs, sft.max_length) == (1e-4, 16, 5, 2048)
    assert (sft.beta1, sft.beta2, sft.weight_decay, sft.max_grad_norm) == (0.9, 0.95, 0.01, 1.0)
    ppo = config.ppo
    assert (ppo.total_steps, ppo.env_groups, ppo.group_size) == (1000, 32, 8)
    assert (ppo.lr, ppo.critic_lr, ppo.gamma, ppo.lam) == (1e-6, 1e-5, 1.0, 1.0)
    assert (ppo.clip_low, ppo.clip_high, ppo.dual_clip, ppo.value_clip) == (0.2, 0.28, 3.0, 0.5)
    assert (ppo.entropy_coef, ppo.kl_coef, ppo.filter_ratio) == (0.001, 0.0, 0.25)
    assert (ppo.advantage, ppo.minibatch_size, ppo.format_penalty) == ("token", 64, -0.1)
    env = config.env
    assert (env.max_turns, env.max_actions_per_turn, env.max_actions) == (5, 5, 10)
    sampling = config.sampling
    assert (sampling.temperature, sampling.max_new_tokens, sampling.max_model_len) == (1, 400, 3600)


ALL = [
    dict(zip(("profile", "model", "experiment"), names, strict=True))
    for names in itertools.product(*map(conf.known, ("profile", "model", "experiment")))
]
ALL += [{group: name} for group in ("env", "cluster") for name in conf.known(group)]


@pytest.mark.parametrize("names", ALL, ids=lambda names: "-".join(names.values()))
def test_every_file_composes_and_survives_json(names: dict[str, str]) -> None:
    config = compose(**names)
    stored = json.loads(json.dumps(conf.to_plain(config)))
    assert conf.from_plain(stored) == config


def test_an_environment_without_a_file_takes_the_default_group() -> None:
    config = compose(env="my_pkg.my_game:MyGame", profile="paper")
    assert config.env.id == "my_pkg.my_game:MyGame"
    assert config.env.max_actions == 10


def test_the_id_as_gymnasium_spells_it_finds_its_file() -> None:
    assert compose(env="spa/frozenlake_upstream").env.id == "frozenlake_upstream"


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("ppo.lr=1e-5", "ppo", "lr", 0.00001),
        ("ppo.total_steps=7", "ppo", "total_steps", 7),
        ("evaluation.pass_k=[1, 4]", "evaluation", "pass_k", [1, 4]),
        ("env.kwargs.size=6", "env", "kwargs", {"size": 6}),
        ("+env.kwargs={size: 5, frozen_prob: 0.9}", "env", "kwargs",
         {"size": 5, "frozen_prob": 0.9}),
        ("prompt.lenient=false", "prompt", "lenient", False),
        ("tracking.uri='http://host:5000'", "tracking", "uri", "http://host:5000"),
    ],
)  # fmt: skip
def test_overrides_are_read_in_hydras_syntax(
    override: str, section: str, key: str, value: object
) -> None:
    assert getattr(getattr(compose(overrides=[override]), section), key) == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"profile": "lapto"}, ["unknown profile 'lapto'", "did you mean 'laptop'?", "smoke"]),
        ({"experiment": "vanila_rl"}, ["did you mean 'vanilla_rl'?"]),
        ({"model": "tyny"}, ["did you mean 'tiny'?", "model directory"]),
        ({"cluster": "k8s"}, ["Known: aws_batch, kubernetes, local."]),
        ({"overrides": ["ppo.lrr=1"]}, ["'ppo.lrr'", "did you mean 'ppo.lr'?"]),
        ({"overrides": ["lr=1"]}, ["did you mean 'ppo.lr' or 'sft.lr'?"]),
        ({"overrides": ["ppoo.lr=1"]}, ["did you mean 'ppo.lr'?"]),
        ({"overrides": ["ppo=1"]}, ["is a section", "ppo.lr"]),
        ({"overrides": ["ppo.lr"]}, ["write key=value"]),
        ({"overrides": ["~ppo.lr"]}, ["takes a setting away"]),
        ({"overrides": ["ppo.lr=1,2"]}, ["is a sweep"]),
        ({"overrides": ["ppo.lr=abc"]}, ["ppo.lr=abc", "Float"]),
        ({"overrides": ["ppo.total_steps=1.5"]}, ["Integer"]),
        ({"overrides": ["env.max_turns=null"]}, ["not Optional"]),
        ({"overrides": ["prompt.style=ful"]}, ["prompt.style", "did you mean 'full'?"]),
        ({"overrides": ["ppo.gamma=2"]}, ["outside 0..1"]),
        ({"overrides": ["sft.beta2=1.5"]}, ["sft.beta2=1.5", "less than 1"]),
        ({"overrides": ["ppo.beta1=1"]}, ["ppo.beta1=1.0", "less than 1"]),
        ({"overrides": ["evaluation.confidence=1"]}, ["evaluation.confidence=1.0", "less than 1"]),
        ({"overrides": ["evaluation.confidence=0"]}, ["evaluation.confidence=0.0", "more than 0"]),
        ({"overrides": ["ppo.lr=-1"]}, ["is negative"]),
        ({"overrides": ["ppo.lr=nan"]}, ["no finite number"]),
        ({"overrides": ["env.action_separator=' '"]}, ["env.action_separator is blank"]),
        ({"overrides": ["model.num_heads=7"]}, ["model.hidden_size=64", "give a multiple"]),
        ({"overrides": ["sampling.max_model_len=257"]}, ["model.max_positions=256"]),
        ({"overrides": ["ppo.format_penalty=0.1"]}, ["would reward"]),
        ({"overrides": ["evaluation.samples=0"]}, ["give at least 1"]),
        ({"overrides": ["evaluation.pass_k=[1,16]"]}, ["needs more than evaluation.samples=8"]),
        ({"overrides": ["evaluation.pass_k=[]"]}, ["one or more k"]),
        ({"overrides": ["ppo.probe_pass_k=[1,4]"]}, ["needs more than ppo.probe_samples=1"]),
        ({"overrides": ["ppo.probe_pass_k=[0]"]}, ["ppo.probe_pass_k", "one or more k"]),
        ({"overrides": ["prompt.prediction_steps=eahc"]}, ["did you mean 'each'?"]),
        (
            {"overrides": ["prompt.prediction_steps=each", "env.max_actions_per_turn=3"]},
            ["one after each of 3", "set selfplay.prediction=sampled"],
        ),
        ({"overrides": ["prompt.history=full"]}, ["prompt.style=full"]),
        ({"overrides": ["sampling.max_new_tokens=256"]}, ["no room for a prompt"]),
        ({"overrides": ["sampling.temperature=0"]}, ["PPO", "above 0"]),
        ({"overrides": ["ppo.group_size=1"]}, ["a group of one", "ppo.filter_ratio=1"]),
        ({"overrides": ["ppo.dual_clip=1"]}, ["ppo.dual_clip=1 ", "above 1, or 0"]),
        ({"overrides": ["ppo.dual_clip=0.2"]}, ["ppo.dual_clip=0.2 "]),
        ({"overrides": ["ppo.budget_factor=0.5"]}, ["give at least 1"]),
        ({"overrides": ["ppo.critic_warmup=120"]}, ["none of ppo.total_steps=120", "lower it"]),
        ({"overrides": ["ppo.probe_puzzles=0"]}, ["ppo.probe_every=20", "set ppo.probe_every=0"]),
        ({"overrides": ["ppo.critic_warmup=2", "ppo.use_critic=false"]}, ["ppo.critic_warmup=0"]),
        (
            {"experiment": "spa_no_coords", "overrides": ["prompt.random_coords=true"]},
            ["no state has any", "prompt.state_shown"],
        ),
        (
            {"experiment": "spa_self_belief", "overrides": ["selfplay.rounds=1"]},
            ["set selfplay.rounds=2"],
        ),
        (
            {"experiment": "spa_self_belief", "overrides": ["selfplay.policy=random"]},
            ["selfplay.policy=random has no beliefs"],
        ),
        (
            {
                "experiment": "vagen_reward",
                "overrides": ["prompt.style=full", "prompt.history=last_k"],
            },
            ["sft.target=format", "prompt.history=last_k", "set prompt.history=single_turn"],
        ),
        (
            {
                "experiment": "spa_masked_states",
                "model": "qwen2.5-0.5b",
                "overrides": [f"sft.{kind}_weight=0" for kind in ("thought", "answer", "tag")],
            },
            ["sft.thought_weight", "sft.state_loss=mask"],
        ),
        (
            {
                "overrides": [
                    *("prompt.response_format=plain", "selfplay.prediction=sampled"),
                    *(f"sft.{kind}_weight=0" for kind in ("thought", "answer", "tag")),
                ]
            },
            ["prompt.response_format=plain", "thought, answer, tag)"],
        ),
        (
            {
                "experiment": "vanilla_rl",
                "overrides": [
                    "prompt.response_format=answer_only",
                    "sft.answer_weight=0",
                    "sft.tag_weight=0",
                ],
            },
            ["sft.answer_weight and its fellows", "answer, tag)"],
        ),
        (
            {"experiment": "spa_self_belief", "overrides": ["sft.target=format"]},
            ["random play answers in every round", "set sft.target=states"],
        ),
        ({"seed": 10**9 + 1}, ["seed=1000000001", "smaller"]),
        ({"overrides": ["profile=paper"]}, ["option --profile"]),
        ({"overrides": ["env.id=sokoban"]}, ["option --env"]),
        ({"overrides": ["ppo.lr=${nowhere}"]}, ["'nowhere' not found"]),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    arguments: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "tracking.uri=http://user:secret@host:5000=[",
        "~tracking.uri=http://user:secret@host:5000",
        "tracking.uri=http://user:secret@host:5000,http://user:secret@other",
        "ppo.lr=http://user:secret@host:5000",
        "prompt.style=http://user:secret@host:5000",
        "profile=http://user:secret@host:5000",
    ],
)
def test_a_refused_override_is_quoted_without_its_password(override: str) -> None:
    with pytest.raises(ConfigError, match="http://host:5000") as caught:
        compose(overrides=[override])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["verl.overrides=[a.b=1]", "verl.overrides=a.b=1"])
def test_a_value_with_an_equals_sign_is_to_be_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match=r"stands in quotes, for example .*=\['a.b=1'\]"):
        compose(overrides=[text])
    assert compose(overrides=["verl.overrides=['a.b=1']"]).verl.overrides == ["a.b=1"]


def test_plain_values_are_shown_without_passwords() -> None:
    config = compose(overrides=["tracking.uri=http://u:p@host", "verl.overrides=['a=s3://u@b/c']"])
    assert config.tracking.uri == "http://u:p@host"
    plain = conf.to_plain(config)
    plain["tracking"]["uri"], plain["verl"]["overrides"] = "http://host", ["a=s3://b/c"]
    assert conf.shown(conf.to_plain(config)) == plain


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        compose(model=str(tmp_path))
    with pytest.raises(ConfigError, match="doesn't exist"):
        compose(model=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("  ppo.lr=1e-5   sft.lr=1e-3\n", ["ppo.lr=1e-5", "sft.lr=1e-3"]),
        ("a=[1, 2] b={c: 3, d: [4, 5]}", ["a=[1, 2]", "b={c: 3, d: [4, 5]}"]),
        ("a='x y' b=\"]\"", ["a='x y'", 'b="]"']),
        ("a='it' b=1", ["a='it'", "b=1"]),
    ],
)
def test_overrides_are_split_at_blanks_outside_brackets_and_quotes(
    text: str, parts: list[str]
) -> None:
    assert conf.split_overrides(text) == parts


@given(st.lists(st.text("abc=.1", min_size=1)))
def test_splitting_undoes_joining(parts: list[str]) -> None:
    assert conf.split_overrides("  ".join(parts)) == parts


def test_the_digest_names_every_setting_and_is_the_same_in_every_process() -> None:
    config = compose()
    code = "import conf; print(conf.digest(conf.compose()))"
    root = Path(conf.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == conf.digest(config)
    changed = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, lr=2e-4))
    assert conf.digest(changed) != conf.digest(config)


def test_a_stored_config_of_another_version_is_refused() -> None:
    plain = conf.to_plain(compose())
    plain["ppo"]["learning_rate"] = 1.0
    with pytest.raises(ConfigError, match=r"ppo\.learning_rate"):
        conf.from_plain(plain)


def test_flat_lists_every_leaf_by_its_dotted_key() -> None:
    values = conf.flat(compose(overrides=["env.kwargs.size=6"]))
    assert values["env.kwargs"] == {"size": 6}
    assert values["resources.ppo_train.cpu"] == 1
    assert values["seed"] == 0


def test_yaml_numbers_name_their_source() -> None:
    """Every file says where its numbers come from: in its head, or beside them."""
    root = Path(conf.__file__).parent
    bare = [path for path in root.rglob("*.yaml") if not path.read_text().startswith("#")]
    assert not bare


def test_a_file_is_laid_over_the_one_that_it_is_like() -> None:
    """`spa_masked_states` says little; the rest is spa.yaml's, for the tiny model's kin too."""
    spa = conf.compose(experiment="spa", model="tiny_0_5m")
    masked = conf.compose(experiment="spa_masked_states", model="tiny_0_5m")
    assert (spa.sft.target, masked.sft.target) == ("states", "format")
    assert masked.selfplay.prediction == spa.selfplay.prediction == "likeliest"
    assert masked.ppo.kl_coef > spa.ppo.kl_coef == conf.compose(model="tiny").ppo.kl_coef > 0
    assert (masked.model.hidden_size, masked.model.num_heads) == (128, 4)
    assert masked.model.init_std == conf.compose(model="tiny").model.init_std


@pytest.mark.parametrize(
    ("env", "penalty"),
    [
        ("frozenlake_upstream", -0.5),
        ("frozenlake_deterministic", 0),
        ("sokoban_2boxes", -3.0),
        ("sudoku", -0.1),
        ("countdown", 0),
    ],
)
def test_wrong_states_cost_in_proportion_to_a_win_where_truth_is_taught(
    env: str, penalty: float
) -> None:
    def penalties(experiment: str, model: str = "tiny") -> tuple[float, float]:
        ppo = conf.compose(env=env, experiment=experiment, model=model).ppo
        return ppo.observation_penalty, ppo.prediction_penalty

    assert penalties("spa") == penalties("spa_coords") == (penalty, penalty)
    others = (
        *("spa_masked_states", "spa_self_belief", "spa_random_coords", "vanilla_rl"),
        *("cross_game", "cross_complexity", "easy_to_hard"),
    )
    assert {penalties(each) for each in others} == {(0, 0)}
    assert penalties("spa", "qwen2.5-1.5b") == (0, 0)


@pytest.mark.parametrize("env", ["sudoku", "sudoku_medium", "sudoku_hard", "sudoku_9x9"])
def test_a_tiny_model_learns_as_many_moves_with_effect_as_without_of_sudoku(env: str) -> None:
    for experiment in ("spa", "vanilla_rl", "state_estimation_rl"):
        assert conf.compose(env=env, experiment=experiment).filter.max_ineffective == 0.5
    assert conf.compose(env=env).sft.max_steps == 4000
    assert conf.compose(env=env, experiment="vanilla_rl").sft.max_steps == 200
    assert conf.compose(env=env, profile="paper").filter.max_ineffective == 1
    assert conf.compose(env="sokoban").filter.max_ineffective == 1


@pytest.mark.parametrize("env", ["frozenlake", "sokoban", "sokoban_2boxes", "sudoku"])
def test_verl_can_do_what_spa_asks_for_the_model_that_is_made_for_it(env: str) -> None:
    overrides = ["ppo.backend=verl", "ppo.lr_schedule=constant"]
    config = conf.compose(env=env, model="tiny_llama", overrides=overrides)
    assert not lacks(config) and config.ppo.kl_coef > 0


def test_how_a_model_plays_one_world_goes_over_how_it_plays_any() -> None:
    """A tiny model plays ten turns of one action; a game of one question has one turn."""
    assert conf.compose(env="frozenlake").env.max_turns == 10
    assert conf.compose(env="bandit").env.max_turns == 1


def test_the_published_sokoban_data_are_raw_and_those_of_other_games_filtered() -> None:
    enabled = {
        env: compose(profile="paper", env=env).filter.enabled
        for env in ("sokoban", "sokoban_2boxes", "frozenlake", "frozenlake_upstream", "sudoku")
    }
    assert enabled == {
        "sokoban": False,
        "sokoban_2boxes": False,
        "frozenlake": True,
        "frozenlake_upstream": True,
        "sudoku": True,
    }
    assert compose(profile="laptop", env="sokoban").filter.enabled
    raised = compose(profile="paper", env="sokoban", overrides=["filter.enabled=true"])
    assert raised.filter.enabled


def test_what_holds_in_one_world_goes_over_what_holds_in_its_game() -> None:
    def rewards(env: str, model: str) -> float:
        found = compose(experiment="vagen_reward", env=env, model=model).ppo
        assert found.observation_reward == found.prediction_reward
        return found.observation_reward

    names = ("frozenlake", "sudoku", "sudoku_hard", "sudoku_9x9")
    assert [rewards(name, "tiny") for name in names] == [0.05, 0.02, 0.02, 0.01]
    assert rewards("sudoku", "tiny_0_5m") == 0.02
    assert rewards("sudoku", "qwen2.5-1.5b") == 0.5


def test_worlds_that_a_file_speaks_of_exist() -> None:
    """A key of `for_env` is a world, or the first words of one's name."""
    root = Path(conf.__file__).parent
    found = [
        (path.name, key)
        for path in root.rglob("*.yaml")
        for key in OmegaConf.load(path).get("for_env", {})
    ]
    assert ("paper.yaml", "sokoban") in found
    for name, key in found:
        worlds = [env for env in conf.known("env") if f"{env}_".startswith(f"{key}_")]
        assert worlds, (name, key)


@pytest.mark.parametrize("key", ["overrides", "sft_overrides"])
@pytest.mark.parametrize("text", ["a b", "optim.lr", "optim.lr=1,2"])
def test_what_hydra_cannot_read_for_verl_is_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{text!r} among verl.{key} isn't one of Hydra's"):
        compose(overrides=[f'verl.{key}=["model.use_liger=True","{text}"]'])
    told = ["a.b=1", "+a={b:[c,1.5]}", "~a.b"]
    written = ",".join(f'"{each}"' for each in told)
    assert getattr(compose(overrides=[f"verl.{key}=[{written}]"]).verl, key) == told
