"""Card blocks, tables and transcripts: what they must say, and what they survive."""

from dataclasses import replace

import pytest
from rich.console import Console

from steps.agent.records import (
    Completion,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    StopReason,
    Trajectory,
    Transition,
    Turn,
)
from steps.report import blocks, tables, transcripts
from steps.report.blocks import Image, Markdown, Table

SCORES = {
    "pass@1": 0.7421,
    "pass@1_low": 0.69,
    "pass@1_high": 0.794,
    "pass@8": 0.9,
    "pass@8_low": 0.85,
    "pass@8_high": 0.95,
    "n": 1024,
    "puzzles": 128,
    "floor": 0.2161,
    "ceiling": 0.9087,
    "format_rate": 0.999,
    "observation_exact": 0.98,
    "prediction_exact": 0.75,
    "prediction_possible": 0.97,
    "prediction_probability": 0.74,
}
SUMMARY = SCORES | {"after_sft": SCORES | {"pass@1": 0.21, "pass@1_low": 0.18, "pass@1_high": 0.25}}
BOARD, MOVED = "P_\nOG", "_P\nOG"


def everything(found):
    """All text of blocks, pictures by their labels."""
    parts = []
    for block in found:
        if isinstance(block, Markdown):
            parts.append(block.text)
        elif isinstance(block, Table):
            parts += [*block.headers, *(cell for row in block.rows for cell in row)]
        else:
            parts.append(block.label)
    return "\n".join(parts)


def rows_of(found):
    return {row[0]: row[1:] for block in found if isinstance(block, Table) for row in block.rows}


def make_turn(index=0, *, status=ParseStatus.OK, text="an answer", transitions=None):
    moved = Transition(
        action="Right",
        state_before=BOARD,
        state_after=MOVED,
        reward=0.0,
        valid=True,
        effective=True,
        terminated=False,
        truncated=False,
    )
    return Turn(
        index=index,
        prompt=(),
        state_shown=BOARD,
        observation_truth=BOARD,
        prediction_truth=MOVED,
        completion=Completion(text=text),
        response=text,
        parsed=ParsedResponse(
            status=status, observation=BOARD, prediction=MOVED, actions=("Right",), num_emitted=1
        ),
        transitions=(moved,) if transitions is None else transitions,
        possible_next={MOVED: 0.8, BOARD: 0.2},
        reward=1.0,
        penalty=-0.1,
    )


def episode(name, puzzle, *, success=False, turns=None):
    return Trajectory(
        trajectory_id=name,
        env_id="frozenlake",
        env_seed=7,
        puzzle_hash=puzzle,
        group=0,
        member=0,
        policy="scripted",
        turns=(make_turn(),) if turns is None else turns,
        stop_reason=StopReason.ACTION_BUDGET,
        success=success,
        response_format=ResponseFormat.WORLD_MODEL,
    )


def test_headline_has_interval_counts_floor_and_ceiling():
    assert tables.headline(SCORES) == (
        "Pass@1 **0.742** [0.69, 0.79], Pass@8 0.900 (n = 1,024 episodes of 128 puzzles); "
        "random play reaches 0.216, optimal play 0.909."
    )


def test_a_floor_that_was_played_stands_with_its_interval():
    played = SCORES | {"floor": 0.0434, "floor_low": 0.0381, "floor_high": 0.0493}
    played["floor_exact"] = False
    assert "random play reaches 0.043 [0.038, 0.049], optimal play 0.909." in tables.headline(
        played
    )
    assert tables.success_row(played)[2:4] == ("0.043 [0.038, 0.049]", "0.909")
    rows = rows_of(blocks.evaluate_blocks({"summary": played}))
    assert rows["random play"] == ("0.043 [0.038, 0.049]",)
    exact = played | {"floor_exact": True}
    assert tables.success_row(exact)[2] == "0.043"
    unknown = played | {"floor": None, "floor_low": None, "floor_high": None}
    assert tables.success_row(unknown)[2] == "–"


def test_headline_without_a_solver_or_without_episodes():
    unsolved = SCORES | {"floor": None, "ceiling": None}
    assert tables.headline(unsolved).endswith("(n = 1,024 episodes of 128 puzzles).")
    assert tables.headline({"pass@1": None}) == "No episode was measured."


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "–"), (0.0, "0.000"), (0.74212, "0.742"), (1.0, "1.000"), (0.00004, "4e-05"),
        (12.5, "12.5"), (300.0, "300"), (1024, "1,024"), (True, "True"), ("local", "local"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_reading(value, text):
    assert tables.number(value) == text


def test_optimal_play_that_nobody_knows_is_told_with_the_reason():
    unsolved = SCORES | {"ceiling": None, "attainable": None}
    said = "optimal play unknown (the game has no exact solver)."
    assert tables.headline(unsolved).endswith(said)
    assert tables.success_row(unsolved)[3] == "unknown"
    assert rows_of(blocks.evaluate_blocks({"summary": unsolved}))["optimal play"] == ("unknown",)
    assert "Optimal play is unknown where" in printed(unsolved)
    assert "Optimal play is" not in printed(SCORES)


def test_the_legend_explains_the_rows_that_are_there():
    states = {key: value for key, value in SCORES.items() if key.startswith(("obs", "pred"))}
    plain = SCORES | dict.fromkeys(states)
    assert "attainable" not in printed(plain) and "likeliest" not in printed(plain)
    assert "Well-formed answers: share of all turns." in printed(plain)
    whole = printed(SCORES | {"attainable": 0.7})
    assert "Share of the attainable: of the way" in whole and "likeliest state's chance" in whole


def printed(scores):
    """What the terminal shows of one model, on one line."""
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables.summary_table({"frozenlake": scores}))
    return " ".join(console.export_text().split())


def test_models_stand_in_the_order_of_training():
    assert list(tables.models_of(SUMMARY)) == ["after_sft", "final"]
    assert tables.models_of(SUMMARY)["final"] == SCORES


def test_terminal_table_fits_eighty_columns_and_names_its_bounds():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables.summary_table({"frozenlake": SUMMARY, "frozenlake_upstream": SUMMARY}))
    text = console.export_text()
    assert "…" not in text
    for word in ("frozenlake_upstream", "0.742 [0.69, 0.79]", "0.210 [0.18, 0.25]", "random play",
                 "optimal play", "1,024", "after SFT", "after PPO", "0.909"):  # fmt: skip
        assert word in text


def test_a_world_of_few_starts_is_nowhere_called_unseen():
    """Its splits differ in seeds alone (`TextEnv.few_puzzles`)."""
    probe = {"probe/observation_exact": 0.5}
    probe |= {f"probe/by_action/{arm}/prediction_exact": 0.5 for arm in "ab"}
    curve = [{"step": 1, "sft/loss": 1.0, "rollout/success": 0.5, "probe/success": 0.5, **probe}]
    found = {}
    for few in (True, False):
        result = {"probe": probe, "curve": curve, "few_puzzles": few}
        console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(tables.summary_table({"bandit": SUMMARY | {"few_puzzles": few}}))
        found[few] = [
            everything(blocks.sft_blocks(result)),
            everything(blocks.ppo_blocks(result)),
            everything(blocks.evaluate_blocks({"summary": SUMMARY | {"few_puzzles": few}})),
            " ".join(console.export_text().split()),
        ]
    for text in found[True]:
        assert "starts may" in text
        assert "unseen" not in text and "hasn't seen" not in text and "aren't trained" not in text
    assert not any("starts may" in text for text in found[False])
    assert "measured on unseen puzzles" in found[False][3]


def test_evaluation_card_has_every_model_between_the_bounds_and_readable_episodes():
    report = {
        "summary": SUMMARY,
        "models": {
            "final": {
                "by_action": {
                    action: {"turns": 9} | dict.fromkeys(tables.WORLD_MODEL, 0.5)
                    for action in ("Down", "Up")
                },
                "by_num_actions": {"1": {"turns": 9}},
                "sample": transcripts.sample([episode("a", "p", success=True)]),
            }
        },
        "gains": {"after_sft": {"gain": 0.53, "low": 0.5, "high": 0.56, "puzzles": 128}},
    }
    found = blocks.evaluate_blocks(report)
    assert rows_of(found)["Pass@1"] == ("0.210 [0.18, 0.25]", "0.742 [0.69, 0.79]")
    assert rows_of(found)["random play"] == ("0.216", "0.216")
    assert rows_of(found)["Up"][0] == "9"
    text = everything(found)
    assert "**+0.530** [+0.500, +0.560] over 128 puzzles" in text
    assert "turn 1, the model sees\nP_\nOG\n--- it answers\nan answer\n" in text
    assert "chance of the predicted state 0.80" in text
    assert "by action" in text
    assert "actions ahead" not in text  # one action a turn: nothing to compare
    assert sum(isinstance(block, Image) for block in found) == 2


def test_success_is_shown_by_quarters_of_the_puzzles():
    def quarters(rate):
        scores = {"puzzles": 32, "floor": 0.01, "ceiling": None, "pass@1": rate, "pass@8": 0.9}
        scores |= {"pass@1_low": 0.1, "pass@1_high": 0.2, "pass@2": 0.3}
        return {"by_difficulty": {"hardest": scores, "easiest": scores | {"floor": 0.6}}}

    models = {"after_sft": quarters(0.15), "final": quarters(0.75)}
    found = blocks.evaluate_blocks({"summary": SUMMARY, "models": models})
    (table,) = (each for each in found if isinstance(each, Table) and "random play" in each.headers)
    assert table.headers[4:] == (
        *("Pass@1 after SFT", "Pass@8 after SFT"),
        *("Pass@1 after PPO", "Pass@8 after PPO"),
    )
    hardest = ("hardest", "32", "0.010", "unknown", "0.150 [0.10, 0.20]", "0.900")
    assert table.rows[0] == (*hardest, "0.750 [0.10, 0.20]", "0.900")
    assert table.rows[1][2] == "0.600"
    plain = blocks.evaluate_blocks({"summary": SUMMARY, "models": {"final": {"by_difficulty": {}}}})
    assert "by difficulty" not in everything(plain)


def test_summary_alone_makes_an_evaluation_card():
    assert "0.742" in everything(blocks.evaluate_blocks(SUMMARY))


def test_arms_without_states_have_no_world_model_rows():
    plain = {k: None if k.startswith(("obs", "pred")) else v for k, v in SCORES.items()}
    rows = rows_of(blocks.evaluate_blocks({"summary": plain}))
    assert "well-formed answers" in rows
    assert "observation right" not in rows


def test_results_card_has_a_row_a_model_with_bounds():
    found = blocks.join_blocks({"frozenlake": SUMMARY})
    success, world = (block for block in found if isinstance(block, Table))
    names = ("Pass@1", "Pass@k", "random play", "optimal play", "episodes", "puzzles")
    assert success.headers == ("environment", "model", *names)
    bounds = ("0.900 (k=8)", "0.216", "0.909", "1,024", "128")
    assert success.rows == (
        ("frozenlake", "after SFT", "0.210 [0.18, 0.25]", *bounds),
        ("frozenlake", "after PPO", "0.742 [0.69, 0.79]", *bounds),
    )
    assert world.rows[1][2:] == ("0.999", "0.980", "0.750", "0.970", "0.740", "–")
    assert len(world.headers) == len(world.rows[0]) <= 8  # more is wider than a card


def test_filter_card_shows_reasons_and_the_dropped_texts_unharmed():
    result = {
        "rows": 10,
        "kept": 8,
        "dropped": {"truncated": 2},
        "examples": {"truncated": ["<think>a ``` b"], "no_answer": []},
        "train_rows": 7,
        "validation_rows": 1,
        "puzzles": 4,
    }
    found = blocks.filter_blocks(result)
    assert rows_of(found)["kept for training"] == ("7",)
    text = everything(found)
    assert "8 turns kept, 2 dropped" in text
    assert "### Dropped: truncated" in text and "no answer" not in text
    assert "````\n<think>a ``` b\n````" in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"deduplicate": True}, "well-formed answer are learned from, each one once."),
        ({"deduplicate": False}, "are learned from, as often as they were played."),
        ({"deduplicate": True, "max_ineffective": 0.5}, "once; at most 50% of them changed"),
        ({"enabled": False, "deduplicate": True}, "well-formed or not: the filter is off."),
        (None, "Only turns with a well-formed answer are learned from."),
    ],
)
def test_filter_card_says_what_this_filter_keeps(settings, said):
    result = {"kept": 877, "distinct": 328}
    found = blocks.filter_blocks(result if settings is None else result | {"settings": settings})
    assert said in everything(found)
    assert ("once" in everything(found)) is ("once" in said)
    assert rows_of(found)["of these different in prompt or answer"] == ("328",)


def pictures(monkeypatch):
    """Title, lines and bounds of each curve that is drawn from now on."""
    drawn = []

    def curve(series, *, title, is_rate, floor, ceiling):
        drawn.append((title, [each.name for each in series], floor, ceiling))
        return b""

    monkeypatch.setattr(blocks.figures, "curve", curve)
    return drawn


def test_training_cards_draw_the_metrics_that_are_there_between_the_bounds(monkeypatch):
    curve = [
        {"step": 1, "rollout/success": 0.2, "rollout/format_rate": 1.0, "actor/entropy": 0.3},
        {"step": 2, "rollout/success": 0.3, "rollout/format_rate": 1.0, "probe/success": 0.25},
    ]
    drawn = pictures(monkeypatch)
    blocks.ppo_blocks({"curve": curve, "floor": 0.2, "ceiling": 0.9, "seconds": 75.2})
    assert drawn == [
        ("Success, share of episodes", ["training puzzles", "validation puzzles"], 0.2, 0.9),
        ("World model while it learns to act, share of turns", ["well-formed"], None, None),
        ("Entropy, nats a token", ["entropy"], None, None),
    ]


@pytest.mark.parametrize(("facts", "told"), [({"budget_factor": 1.5}, True), ({}, False)])
def test_the_success_chart_tells_of_a_longer_budget_in_training(facts, told):
    curve = [{"step": step, "rollout/success": 0.2} for step in (1, 2)]
    text = everything(blocks.ppo_blocks({"curve": curve, "floor": 0.2, "ceiling": 0.9, **facts}))
    assert ("played with 1.5 times the actions" in text) is told
    assert "Dashed, of other puzzles: random and optimal play on the validation puzzles" in text


def test_finetuning_card_draws_losses_by_part_and_lists_the_probe(monkeypatch):
    first = {"step": 1, "sft/loss": 2.0, "sft/validation_loss": 2.1, "sft/validation_loss_tag": 0.5}
    probe = {"probe/format_rate": 0.99, "probe/success": 0.2}
    drawn = pictures(monkeypatch)
    result = {"curve": [first, first | {"step": 2}], "probe": probe, "model": "/a/path"}
    found = blocks.sft_blocks(result | {"seconds": 75.2})
    assert [each[:2] for each in drawn] == [
        ("Loss, nats a token", ["training", "validation"]),
        ("Validation loss by part of the answer, nats a token", ["tag"]),
    ]
    assert rows_of(found)["time"] == ("1 min 15 s",)
    assert rows_of(blocks.sft_blocks({"curve": [first]}))["tag"] == ("0.500",)  # no line: one point
    assert rows_of(found)["well-formed answers"] == ("0.990",)
    assert "/a/path" not in everything(found)


@pytest.mark.parametrize(
    "make",
    [blocks.selfplay_blocks, blocks.filter_blocks, blocks.sft_blocks, blocks.ppo_blocks,
     blocks.evaluate_blocks, blocks.join_blocks],
)  # fmt: skip
def test_empty_results_make_a_card_all_the_same(make):
    assert make({})


def test_selfplay_card_shows_counts_and_text_where_there_is_no_board():
    sample = transcripts.sample([episode("a", "p")])
    for turn in sample[0]["turns"]:
        turn["state"] = "Player (P) is at (0,0)."
    found = blocks.selfplay_blocks({"trajectories": 2000, "seeds": [5, 90], "sample": sample})
    assert rows_of(found)["episodes"] == ("2,000",)
    assert rows_of(found)["seeds"] == ("5 to 90",)
    assert not any(isinstance(block, Image) for block in found)
    assert "**frozenlake, seed 7: not solved, out of actions**" in everything(found)


def test_long_episodes_say_what_is_left_out():
    long = transcripts.transcript(episode("a", "p", turns=tuple(make_turn(i) for i in range(12))))
    text = blocks.episode_text(long, max_turns=10)
    assert text.count("--- turn") == 10
    assert text.endswith("and 2 more turns")


def test_under_boards_stand_the_first_answer_and_a_malformed_one_with_long_lines_broken():
    odd = make_turn(2, status=ParseStatus.NO_ANSWER, text="w " * 100)
    played = episode("a", "p", turns=(make_turn(0), make_turn(1), odd, make_turn(3)))
    text = everything(blocks.evaluate_blocks({"models": {"final": {"sample": [
        transcripts.transcript(played)]}}}))  # fmt: skip
    assert [line for line in text.splitlines() if line.startswith("--- turn")] == [
        "--- turn 1, the model sees", "--- turn 3, the model sees"
    ]  # fmt: skip
    assert "--- it answers (malformed: no answer)" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("w ")) <= 100


def test_durations_are_written_for_reading():
    said = [tables.duration(seconds) for seconds in (None, 2.426, 75.2, 3725.0)]
    assert said == [None, "2.4 s", "1 min 15 s", "1 h 2 min"]


def test_transcript_is_plain_and_keeps_what_the_model_wrote():
    found = transcripts.transcript(episode("a", "p", success=True))
    assert found["success"] is True and found["stop_reason"] == "action_budget"
    assert found["reward"] == pytest.approx(0.9)
    (turn,) = found["turns"]
    assert turn == {
        "index": 0,
        "state": BOARD,
        "response": "an answer",
        "status": "ok",
        "observation": BOARD,
        "observation_truth": BOARD,
        "prediction": MOVED,
        "prediction_truth": MOVED,
        "chance": 0.8,
        "actions": ["Right"],
        "effective": True,
        "reward": 0.9,
    }
    assert type(turn["status"]) is str and type(found["stop_reason"]) is str


def test_sample_takes_a_success_a_failure_and_a_malformed_one_of_different_puzzles():
    malformed = (make_turn(status=ParseStatus.NO_ANSWER),)
    played = [
        episode("silent", "p0", turns=()),
        episode("won", "p1", success=True),
        episode("lost, same puzzle", "p1"),
        episode("lost", "p2"),
        episode("won too", "p3", success=True),
        episode("malformed", "p4", turns=malformed),
    ]
    chosen = [each["trajectory_id"] for each in transcripts.sample(played)]
    assert chosen == ["won", "lost", "malformed"]


def test_sample_fills_up_with_what_there_is():
    played = [episode("a", "p"), episode("b", "p")]
    assert [each["trajectory_id"] for each in transcripts.sample(played)] == ["a", "b"]
    assert transcripts.sample([]) == []


def test_pass_at_k_over_training_is_drawn_where_probes_have_several_k(monkeypatch):
    probes = [
        {"probe/success": k, "probe/pass@1": k, "probe/pass@1_low": k - 0.1,
         "probe/pass@1_high": k + 0.1, "probe/pass@8": 2 * k, "step": step}
        for step, k in ((10, 0.2), (20, 0.4))
    ]  # fmt: skip
    drawn = []
    monkeypatch.setattr(
        blocks.figures, "curve", lambda series, **given: drawn.append((series, given)) or b""
    )
    result = {"curve": probes, "floor": 0.2, "ceiling": 0.9}
    blocks.ppo_blocks(result)
    lines, given = next(each for each in drawn if each[1]["title"].startswith("Pass@k"))
    assert [line.name for line in lines] == ["Pass@1", "Pass@8"]
    assert (lines[0].x, lines[0].low) == ((10, 20), pytest.approx([0.1, 0.3]))
    assert (lines[1].y, lines[1].low) == ((0.4, 0.8), ())
    assert (given["floor"], given["ceiling"]) == (0.2, 0.9)
    drawn.clear()
    for row in probes:
        del row["probe/pass@8"]
    blocks.ppo_blocks(result)
    assert not [each for each in drawn if each[1]["title"].startswith("Pass@k")]


def test_a_probes_classes_of_turns_and_likelihoods_are_tables():
    probe = {
        "probe/format_rate": 1.0,
        "probe/by_action/Up/prediction_exact": 0.25,
        "probe/by_action/a/b/prediction_exact": 0.75,
        "probe/by_effect/effective/prediction_exact": 0.5,
        "probe/teacher_forced_answer_exact": 0.875,
        "probe/teacher_forced_answer_nll": 0.125,
    }
    found = blocks.sft_blocks({"probe": probe})
    rows = rows_of(found)
    assert (rows["Up"], rows["a/b"]) == (("0.250",), ("0.750",))
    assert "effective" not in rows  # one class alone is the whole
    assert rows["answer: all tokens the first choice"] == ("0.875",)
    assert rows["answer: nats a token"] == ("0.125",)


def test_evaluation_card_has_the_share_of_the_attainable_and_classes_of_effect():
    scores = SCORES | {"attainable": 0.76, "attainable_low": 0.7, "attainable_high": 0.8,
                       "return": 0.7, "valid_actions": 0.99, "floor_low": 0.2161,
                       "floor_high": 0.2161}  # fmt: skip
    classes = {"effective": 0.9, "ineffective": 0.6}
    final = {
        "by_effect": {name: {"turns": 5, "prediction_exact": x} for name, x in classes.items()}
    }
    rows = rows_of(blocks.evaluate_blocks({"summary": scores, "models": {"final": final}}))
    assert rows["share of the attainable"] == ("0.760 [0.70, 0.80]",)
    assert rows["random play"] == ("0.216",)  # an exact floor has no interval
    assert rows["ineffective"] == ("5", "0.600")
    assert rows["actions that the game knows"] == ("0.990",)


def test_plain_tables_line_their_columns_up():
    text = tables.plain_table(("k", "Pass@k"), [("1", "0.500"), ("1024", "1")])
    assert text == "k     Pass@k\n1      0.500\n1024       1"


def test_the_chance_of_a_prediction_is_unknown_where_only_the_path_is():
    turns = (replace(make_turn(), possible_next={MOVED: 0.4}),)
    found = transcripts.transcript(
        replace(episode("a", "p", turns=turns), prediction_separator="||")
    )
    assert found["turns"][0]["chance"] is None
    assert found["prediction_separator"] == "||"


def test_outer_white_space_takes_no_chance_from_a_prediction():
    """Sudoku's board ends in a blank, which the parser strips from what was predicted."""
    turn = replace(make_turn(), possible_next={f"{MOVED} ": 1.0})
    assert turn.parsed.prediction == MOVED
    found = transcripts.transcript(episode("a", "p", turns=(turn,)))
    assert found["turns"][0]["chance"] == 1.0


def test_a_later_rounds_play_is_on_the_card_of_finetuning():
    rounds = [
        {
            "round": number,
            "selfplay": {"trajectories": 10 * number, "turns": 50, "round": number},
            "filter": {"rows": 50, "kept": 40, "dropped": {"no_answer": 10}, "examples": {}},
        }
        for number in (2, 3)
    ]
    alone = everything(blocks.sft_blocks({"curve": []}))
    told = everything(blocks.sft_blocks({"curve": [], "rounds": rounds}))
    assert "Round" not in alone
    for words in ("Round 2", "The model of round 1 plays", "Round 3", "40 turns kept, 10 dropped"):
        assert words in told
    assert everything(blocks.sft_blocks({"curve": [], "rounds": []})) == alone


def test_selfplay_card_draws_boards_with_the_symbols_of_its_own_arguments(monkeypatch):
    seen = []
    monkeypatch.setattr(
        blocks, "episode_blocks", lambda result, env_kwargs=None: seen.append(env_kwargs) or []
    )
    symbols = {"symbols": ["w", " ", "t", "b", "B", "p", "q"]}
    blocks.selfplay_blocks({"env_kwargs": symbols})
    blocks.selfplay_blocks({})
    assert seen == [symbols, None]
