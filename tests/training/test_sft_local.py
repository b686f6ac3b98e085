"""Finetuning on a toy set: it learns, sees each example once an epoch, and resumes to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema import Config
from steps.agent.parsing import spans
from steps.agent.records import ResponseFormat, SFTExample
from steps.errors import ConfigError
from steps.tracking import NullTracker
from steps.training import sft_local, tokenization
from steps.training.batch_order import num_steps
from steps.training.checkpoints import CheckpointStore, DirectoryCheckpoints
from steps.training.optimizers import Optimizers
from steps.training.sft_local import SFTRun, evaluate_loss, train_sft
from steps.training.tiny_model import build_tokenizer
from steps.training.tokenization import SFTRow, tokenize_examples
from steps.workers import Peers
from tests.training.toys import (
    BreakingOff,
    PowerCutError,
    batches_of,
    example,
    same_weights,
    toy_config,
    undecided_examples,
    untrained,
)

KNOWN = [example(room, action) for room, action in (("A", "Left"), ("B", "Right"))] * 8
"""Answers that tell where the prize is: every token can be foretold."""


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained(tmp_path_factory.mktemp("sft"), toy_config())


def finetune(
    config: Config,
    initial: str,
    work: Path,
    examples: Sequence[SFTExample] = KNOWN,
    *,
    validation: Sequence[SFTExample] = (),
    tracker: NullTracker | None = None,
    checkpoints: CheckpointStore | None = None,
) -> SFTRun:
    return train_sft(
        Peers(), config, examples, validation, initial, "f", work, tracker, checkpoints
    )


def test_the_loss_falls_from_that_of_a_guess_to_nearly_nothing(
    initial: str, tmp_path: Path
) -> None:
    config, tracker = toy_config(), NullTracker()
    config.sft.eval_every = 20
    run = finetune(config, initial, tmp_path, validation=KNOWN[:2], tracker=tracker)
    losses = [metrics["sft/loss"] for _, metrics in tracker.logged]
    assert losses[0] > 3.0
    assert losses[-1] < 0.05
    last = run.curve[-1]
    assert (last["step"], run.steps) == (40, 40)
    assert last["sft/validation_loss"] < 0.05
    assert last["sft/validation_loss_answer"] < 0.05
    assert [point["step"] for point in run.curve if "sft/validation_loss" in point] == [20, 40]


def test_what_cannot_be_foretold_keeps_its_entropy(initial: str, tmp_path: Path) -> None:
    run = finetune(
        toy_config(), initial, tmp_path, undecided_examples(), validation=undecided_examples(8)
    )
    # four tokens and one even choice among them: ln 2 on the answer, a quarter of it on average
    assert run.curve[-1]["sft/validation_loss_answer"] == pytest.approx(0.693, abs=0.05)
    assert run.curve[-1]["sft/validation_loss"] == pytest.approx(0.693 / 4, abs=0.05)


def test_the_first_loss_is_the_mean_over_the_learned_tokens_of_a_plain_forward_pass(
    initial: str, tmp_path: Path
) -> None:
    config, tracker = toy_config(), NullTracker()
    config.sft.max_steps, config.sft.batch_size = 1, 2
    long = example("A long room", "Left or Right")
    finetune(config, initial, tmp_path, [example("A", "Left"), long], tracker=tracker)
    model, tokenizer = sft_local.load_model(initial), build_tokenizer()
    losses = []
    for room, action in (("A", "Left"), ("A long room", "Left or Right")):
        ids = tokenizer(f"<|user|>{room}<|end|><|assistant|><answer>{action}</answer><|end|>")
        row = torch.tensor(ids["input_ids"])
        start = row.tolist().index(tokenizer.convert_tokens_to_ids("<|assistant|>")) + 1
        scores = torch.log_softmax(model(input_ids=row[None]).logits[0].detach(), -1)
        losses += [-float(scores[i - 1, row[i]]) for i in range(start, len(row))]
    assert len(losses) == 4 + 9  # two tags and the end; one action, or two and the bytes of " or "
    assert tracker.logged[0][1]["sft/loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)


def test_every_example_is_seen_once_an_epoch_in_another_order(
    initial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.sft.max_steps, config.sft.epochs, config.sft.batch_size = 0, 3, 4
    examples = [example(letter, "Left") for letter in "abcdefghijkl"]
    with batches_of(sft_local, monkeypatch) as batches:
        run = finetune(config, initial, tmp_path, examples)
    assert run.steps == 9 and [len(batch) for batch in batches] == [4] * 9
    rooms = ["".join(build_tokenizer().decode(row[1:2]) for row in batch) for batch in batches]
    epochs = ["".join(rooms[start : start + 3]) for start in (0, 3, 6)]
    assert [sorted(epoch) for epoch in epochs] == [list("abcdefghijkl")] * 3
    assert len(set(epochs)) == 3


def test_rows_that_fill_no_batch_wait_for_another_epoch(
    initial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.sft.max_steps, config.sft.epochs, config.sft.batch_size = 0, 8, 4
    examples = [example(letter, "Left") for letter in "abcdefg"]
    with batches_of(sft_local, monkeypatch) as batches:
        finetune(config, initial, tmp_path, examples)
    rooms = [[build_tokenizer().decode(row[1:2]) for row in batch] for batch in batches]
    assert [len(set(batch)) for batch in rooms] == [4] * 8
    assert set(Counter(room for batch in rooms for room in batch)) == set("abcdefg")


@pytest.mark.parametrize(
    ("max_steps", "epochs", "num_rows", "expected"),
    [(7, 3, 100, 7), (0, 3, 100, 18), (0, 3, 16, 3), (0, 3, 5, 3)],
)
def test_the_number_of_steps(max_steps: int, epochs: int, num_rows: int, expected: int) -> None:
    section = toy_config().sft
    section.max_steps, section.epochs, section.batch_size = max_steps, epochs, 16
    assert num_steps(section, num_rows) == expected


def test_interrupted_and_resumed_it_ends_with_the_same_weights_and_curve(
    initial: str, tmp_path: Path
) -> None:
    config = toy_config()
    config.sft.save_every, config.sft.eval_every, config.sft.max_steps = 7, 5, 25
    examples = undecided_examples()
    whole = finetune(config, initial, tmp_path / "whole", examples, validation=examples[:4])
    with pytest.raises(PowerCutError):
        store = BreakingOff(tmp_path / "store", last_step=14)
        finetune(config, initial, tmp_path, examples, validation=examples[:4], checkpoints=store)
    resumed = finetune(
        config,
        initial,
        tmp_path,
        examples,
        validation=examples[:4],
        checkpoints=DirectoryCheckpoints(tmp_path / "store"),
    )
    assert same_weights(resumed.model, whole.model)
    assert not same_weights(resumed.model, sft_local.load_model(initial))
    assert [point["step"] for point in whole.curve] == [1, 5, 10, 15, 20, 21, 25]
    assert [without_time(point) for point in resumed.curve] == [
        without_time(point) for point in whole.curve
    ]


def test_weights_are_trained_in_float32_whatever_the_model_plays_in(
    initial: str, tmp_path: Path
) -> None:
    config = toy_config()
    config.model.dtype, config.sft.max_steps = "bfloat16", 1
    run = finetune(config, initial, tmp_path, undecided_examples())
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}


def without_time(point: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in point.items() if name != "sft/seconds"}


def test_a_batch_taken_in_parts_has_the_gradient_of_the_whole(
    initial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.sft.max_steps = 3
    whole = finetune(config, initial, tmp_path / "whole", undecided_examples())
    monkeypatch.setattr(tokenization, "MAX_ROWS", 3)
    parts = finetune(config, initial, tmp_path / "parts", undecided_examples())
    assert parts.curve[0]["sft/loss"] == pytest.approx(whole.curve[0]["sft/loss"], rel=1e-5)
    assert parts.curve[0]["sft/grad_norm"] == pytest.approx(
        whole.curve[0]["sft/grad_norm"], rel=1e-4
    )


def test_a_limit_of_zero_cuts_no_gradient(initial: str, tmp_path: Path) -> None:
    config, runs = toy_config(), {}
    config.sft.max_steps = 2
    for config.sft.max_grad_norm in (0.0, 1e6):
        directory = tmp_path / str(config.sft.max_grad_norm)
        runs[config.sft.max_grad_norm] = finetune(config, initial, directory, undecided_examples())
    assert same_weights(runs[0.0].model, runs[1e6].model)
    assert not same_weights(runs[0.0].model, sft_local.load_model(initial))


def test_the_loss_is_weighted_by_kinds_of_text(initial: str, tmp_path: Path) -> None:
    config, tracker = toy_config(), NullTracker()
    config.sft.max_steps, config.sft.batch_size = 1, 1
    config.sft.tag_weight, config.sft.answer_weight = 0.25, 2.0
    finetune(config, initial, tmp_path, [example("A", "Left")], tracker=tracker)
    opening, answer, closing, end = token_losses(initial, "A", "Left")
    # weights 1/4, 2, 1/4 and, of the end of the turn, 1: in all 3.5
    expected = (0.25 * opening + 2.0 * answer + 0.25 * closing + end) / 3.5
    assert tracker.logged[0][1]["sft/loss"] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_is_that_of_the_mean_weighted_loss(initial: str, tmp_path: Path) -> None:
    config, tracker = toy_config(), NullTracker()
    config.sft.max_steps, config.sft.batch_size = 1, 2
    config.sft.tag_weight, config.sft.answer_weight = 0.25, 2.0
    pair = [example("A", "Left"), example("B", "Right")]
    finetune(config, initial, tmp_path, pair, tracker=tracker)
    model, tokenizer = sft_local.load_model(initial), build_tokenizer()
    loss = torch.tensor(0.0)
    for room, action in (("A", "Left"), ("B", "Right")):
        text = f"<|user|>{room}<|end|><|assistant|><answer>{action}</answer><|end|>"
        ids = tokenizer(text)["input_ids"]
        scores = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], -1)
        for place, weight in zip((-4, -3, -2, -1), (0.25, 2.0, 0.25, 1.0), strict=True):
            loss = loss - weight * scores[place - 1, ids[place]] / 7.0  # both rows weigh 3.5
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    squares = sum(float((gradient**2).sum()) for gradient in gradients if gradient is not None)
    assert tracker.logged[0][1]["sft/grad_norm"] == pytest.approx(squares**0.5, rel=1e-4)


def test_the_optimizers_have_the_settings_of_their_section(
    initial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    section = config.sft
    section.optimizer, section.lr, section.muon_lr = "muon", 0.01, 0.02
    section.beta1, section.beta2, section.weight_decay = 0.7, 0.8, 0.03
    section.schedule, section.min_lr_ratio = "linear", 0.2
    section.warmup_steps, section.max_steps = 3, 7
    groups: list[tuple[dict[str, Any], ...]] = []
    step = Optimizers.step

    def recording(optimizer: Optimizers) -> None:
        groups.append(tuple(dict(part.param_groups[0]) for part in optimizer.parts))
        step(optimizer)

    monkeypatch.setattr(Optimizers, "step", recording)
    finetune(config, initial, tmp_path)
    # three steps of warm-up, then from 1 down by a quarter of 0.8 each
    scales = (0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4)
    for (adamw, muon), scale in zip(groups, scales, strict=True):
        assert (adamw["lr"], muon["lr"]) == pytest.approx((0.01 * scale, 0.02 * scale))
        assert adamw["betas"] == (0.7, 0.8)
        assert adamw["weight_decay"] == muon["weight_decay"] == 0.03


def token_losses(model_dir: str, room: str, answer: str) -> list[float]:
    """Of each token of the answer and the end of the turn, by a plain forward pass."""
    model, tokenizer = sft_local.load_model(model_dir), build_tokenizer()
    prompt = tokenizer(f"<|user|>{room}<|end|><|assistant|>")["input_ids"]
    ids = prompt + tokenizer(f"<answer>{answer}</answer><|end|>")["input_ids"]
    with torch.no_grad():
        scores = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], -1)
    return [-float(scores[i - 1, ids[i]]) for i in range(len(prompt), len(ids))]


def validation_losses(initial: str, peers: Peers, rows: Sequence[SFTRow]) -> dict[str, float]:
    model = sft_local.load_model(initial)
    return evaluate_loss(peers, model, rows, pad=build_tokenizer().pad_token_id)


def test_validation_losses_are_means_over_the_tokens_of_each_kind(initial: str) -> None:
    examples = [example("A", "Left"), example("B", "Left or Right")]
    rows = tokenize_examples(examples, build_tokenizer())
    first, second = token_losses(initial, "A", "Left"), token_losses(initial, "B", "Left or Right")
    losses = validation_losses(initial, Peers(), rows)
    answers = [*first[1:-2], *second[1:-2]]  # one token, and six: two actions and four bytes
    tags = [first[0], first[-2], second[0], second[-2]]
    assert (len(answers), len(tags)) == (7, 4)
    assert losses == {
        "sft/validation_loss": pytest.approx(sum(first + second) / 13, rel=1e-4),
        "sft/validation_loss_tag": pytest.approx(sum(tags) / 4, rel=1e-4),
        "sft/validation_loss_answer": pytest.approx(sum(answers) / 7, rel=1e-4),
    }


def test_every_kind_of_text_has_its_validation_loss(initial: str) -> None:
    response = "<think><observation>A</observation>x<prediction>B</prediction></think>"
    response += "<answer>Left</answer>"
    stating = replace(
        example("A", "Left"),
        response=response,
        spans=spans(response, ResponseFormat.WORLD_MODEL),
    )
    losses = validation_losses(initial, Peers(), tokenize_examples([stating], build_tokenizer()))
    kinds = ("observation", "prediction", "thought", "answer", "tag")
    assert set(losses) == {"sft/validation_loss", *(f"sft/validation_loss_{k}" for k in kinds)}


class OneOf(Peers):
    """One of several ranks; adds up what it says and what the others said before."""

    def __init__(self, rank: int, size: int, said: list[list[float]]) -> None:
        super().__init__(rank, size)
        self.said = said

    def sum(self, values: Iterable[float]) -> list[float]:
        self.said.append(list(values))
        return [sum(column) for column in zip(*self.said, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_any_number_of_ranks_finds_the_same_validation_losses(size: int, initial: str) -> None:
    words = ["Left", "Right", "Left or Right"]
    rows = tokenize_examples([example("A", word) for word in words], build_tokenizer())
    said: list[list[float]] = []
    for rank in range(size):
        losses = validation_losses(initial, OneOf(rank, size, said), rows)
    assert losses == pytest.approx(validation_losses(initial, Peers(), rows), rel=1e-5)


def test_counted_in_epochs_it_is_validated_after_each(initial: str, tmp_path: Path) -> None:
    config = toy_config()
    config.sft.max_steps, config.sft.epochs, config.sft.batch_size = 0, 3, 4
    config.sft.eval_every = 5
    run = finetune(config, initial, tmp_path, KNOWN, validation=KNOWN[:2])
    assert run.steps == 12
    validated = [point["step"] for point in run.curve if "sft/validation_loss" in point]
    assert validated == [4, 5, 8, 10, 12]


def test_rows_that_are_too_long_are_left_out_counted_and_warned_of(
    initial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = toy_config()
    config.sft.max_steps, config.sft.max_length = 2, 10
    long = example("a room of many words", "Left")
    with batches_of(sft_local, monkeypatch) as batches, caplog.at_level("WARNING"):
        run = finetune(config, initial, tmp_path, [*KNOWN, long], validation=[long, *KNOWN[:2]])
    assert run.too_long == 2
    assert "2 of 20 finetuning rows have more than 10 tokens" in caplog.text
    assert max(len(row) for batch in batches for row in batch) <= 10
    assert "sft/validation_loss" in run.curve[-1]


def test_rows_that_fit_need_no_word(
    initial: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = toy_config()
    config.sft.max_steps = 1
    with caplog.at_level("WARNING"):
        assert finetune(config, initial, tmp_path).too_long == 0
    assert "finetuning rows" not in caplog.text


def test_where_most_rows_are_longer_than_the_models_context_it_refuses(
    initial: str, tmp_path: Path
) -> None:
    config = toy_config()  # of 24 positions
    config.sft.max_length = 1000
    long = example("a room of many, many words", "Left")
    with pytest.raises(ConfigError, match=r"17 of 33 finetuning rows have more than 24 tokens"):
        finetune(config, initial, tmp_path, [*KNOWN, *[long] * 17])
