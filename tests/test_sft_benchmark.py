"""The benchmark of finetuning: its arithmetic by hand, and the whole of it on a small model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import sft
from benchmarks.cards import peak_flops
from benchmarks.models import SHAPES, build_tokenizer
from benchmarks.throughput import Stretch, Work, flops, flops_parameters, stretch, work_of
from steps.policies.loading import load_tokenizer
from steps.training import sft_local, sft_verl
from steps.training.machine import Gpu, Machine
from steps.training.model_size import ModelSize
from steps.training.tokenization import SFTRow
from steps.training.verl_preflight import NEEDED
from tests.training.toys import batches_of

H100 = "NVIDIA H100 80GB HBM3"
SMALL = ["--shape", "tiny", "--env", "frozenlake", "--groups", "2", "--batch-size", "4"]


def row(length: int, trained: int) -> SFTRow:
    return SFTRow(
        token_ids=(7,) * length,
        weights=(0.0,) * (length - trained) + (0.5,) * trained,
        kinds=(-1,) * length,
    )


def size(*, parameters: int, layers: int, hidden: int, vocab: int) -> ModelSize:
    return ModelSize(
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        ffn=0,
        vocab=vocab,
        kv_heads=1,
        cached=0,
    )


def test_work_is_that_of_the_counted_steps_alone() -> None:
    rows = [row(3, 1), row(5, 2)]  # a batch holds both, in any order: each step is the same
    one = work_of(rows, seed=0, batch_size=2, after=4, last=5)
    assert one == Work(tokens=8, trained=3, squares=9 + 25)
    three = work_of(rows, seed=0, batch_size=2, after=4, last=7)
    assert three == Work(tokens=24, trained=9, squares=102)
    assert three.mean_length == 4.25  # three tokens in a row of 3, five in one of 5


def test_the_clock_begins_with_the_row_at_which_the_warm_up_ends() -> None:
    rows = [(1, 60.0), (21, 70.0), (41, 74.0), (50, 76.5)]
    assert stretch(rows, 21) == Stretch(after=21, last=50, seconds=6.5)
    assert stretch(rows, 1) == Stretch(after=1, last=50, seconds=16.5)


def test_operations_by_palms_formula() -> None:
    work = Work(tokens=8, trained=3, squares=34)
    # 6 x 100 x 8, and 12 x 2 x 10 x 34
    assert flops(work, parameters=100, layers=2, hidden=10) == 4800 + 8160


def test_an_embedding_counts_where_it_is_the_output_matrix() -> None:
    found = size(parameters=1000, layers=1, hidden=4, vocab=50)
    assert flops_parameters(found, is_tied=True) == 1000
    assert flops_parameters(found, is_tied=False) == 800


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        (H100, 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA L4", None),
        ("", None),
    ],
)
def test_the_peak_of_a_card(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


@pytest.mark.parametrize(("gpus", "mfu"), [(1, 0.5), (4, 0.125)])
def test_the_utilisation_is_of_each_gpu(gpus: int, mfu: float) -> None:
    options = sft.read_options(["--batch-size", "1"])
    job = sft.Job(
        config=sft.config_of(options),
        model_dir=Path(),
        examples=[],
        rows=[row(10, 4)],
        size=size(parameters=0, layers=10, hidden=100, vocab=0),
        flops_parameters=989_000_000_000 // 10 - 20_000,
        card=H100,
        warmup=1,
        machine=Machine(),
    )
    # Ten tokens: 60 operations a parameter, and 12 x 10 x 100 x 10 x 10 = 60 x 20,000 of attention.
    # That is 60 x 98.9e9 a step; 500 steps in 6 seconds are half of 989e12 a second.
    found = sft.speed(job, Stretch(after=21, last=521, seconds=6.0), gpus=gpus)
    assert found["mfu"] == pytest.approx(mfu)
    assert (found["steps"], found["tokens"], found["trained_tokens"]) == (500, 5000, 2000)
    assert found["step_s"] == pytest.approx(0.012)
    assert found["tokens_s"] == pytest.approx(5000 / 6)
    assert found["trained_tokens_s"] == pytest.approx(2000 / 6)
    assert found["mean_length"] == 10
    assert found["late_share"] == pytest.approx(1 / 12)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
    ],
)
def test_shapes_have_as_many_parameters_as_the_published_models(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SHAPES[name]))
    assert sum(each.numel() for each in model.parameters()) == parameters


def test_the_tokenizer_keeps_to_its_size_and_loses_nothing() -> None:
    text = "Player (P) is at (0,1); the quick brown fox √"
    tokenizer = build_tokenizer([text] * 9, vocab_size=264)
    assert len(tokenizer) == 264
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--warmup", "20"], "--warmup is 20"),
        (["--steps", "0"], "--steps 0"),
        (["--backends", "local,trl"], "--backends has trl"),
        (["--gpus", "3"], "3 GPUs can't share --batch-size 16"),
        (["--device", "cpu"], "--backends local"),
    ],
)
def test_options_that_nothing_can_be_measured_with(
    words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        sft.read_options(words)
    assert said in capsys.readouterr().err


def test_too_few_rows_for_a_batch(tmp_path: Path) -> None:
    options = sft.read_options([*SMALL, "--batch-size", "1000"])
    with pytest.raises(SystemExit, match=r"^\d+ rows fill no batch of 1000"):
        sft.run(options, tmp_path, Machine())


def test_what_is_counted_is_what_the_model_is_given_after_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = sft.read_options([*SMALL, "--backends", "local", "--device", "cpu",
                                "--warmup", "1", "--steps", "3"])  # fmt: skip
    with batches_of(sft_local, monkeypatch) as seen:
        found = sft.run(options, tmp_path, Machine())
    assert len(seen) == 4  # a batch of four rows is one pass here
    rows = [[token for token in ids if token != 0] for batch in seen[1:] for ids in batch]
    assert len(rows) == 12
    tokenizer = load_tokenizer(str(tmp_path / "model"))
    assert tokenizer.pad_token_id == 0
    opening = tokenizer("<|im_start|>assistant\n")["input_ids"]
    answers = [len(ids) - _last(ids, opening[0]) - len(opening) for ids in rows]
    local = found["backends"]["local"]
    assert local["tokens"] == sum(map(len, rows))
    assert local["trained_tokens"] == sum(answers)
    assert min(answers) > 10  # an answer, and not its end alone
    squares = sum(len(ids) ** 2 for ids in rows)
    assert local["mean_length"] == pytest.approx(squares / sum(map(len, rows)))
    assert [(each["step"], "sft/loss" in each) for each in local["rows"]] == [(1, True), (4, True)]
    seconds = local["rows"][1]["second"] - local["rows"][0]["second"]
    assert local["step_s"] == pytest.approx(seconds / 3)
    assert local["startup_s"] == local["rows"][0]["second"]
    assert (local["steps"], local["gpus"], local["mfu"]) == (3, 1, None)
    assert found["flops_parameters"] == found["size"]["parameters"]
    printed = capsys.readouterr().out
    assert f"{local['tokens']:,} tokens, {local['trained_tokens']:,} trained on" in printed
    assert "float32, sdpa, padded" in printed
    json.dumps(found, default=str)


def _last(ids: Sequence[int], wanted: int) -> int:
    return max(place for place, token in enumerate(ids) if token == wanted)


def test_a_backend_that_cant_train_here_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    options = sft.read_options([*SMALL, "--warmup", "1", "--steps", "1"])
    found = sft.run(options, tmp_path, Machine(versions=NEEDED))["backends"]
    assert list(found) == ["local", "verl"]
    assert found["local"]["tokens"] > 0
    assert "needs a CUDA GPU" in found["verl"]["error"]


@pytest.mark.verl
def test_verl_counts_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sft_verl.command

    def on_cpu(overrides: Sequence[str], num_gpus: int) -> list[str]:
        ours, theirs = "steps.training.verl_sft_driver", "tests.training.verl_cpu"
        return [theirs if word == ours else word for word in real(overrides, num_gpus)]

    monkeypatch.setattr(sft_verl, "command", on_cpu)
    gpu = Gpu(name="toy", total=80 << 30, free=80 << 30)
    machine = Machine(gpus=(gpu,), cpus=8, shared_memory=1 << 30, versions=NEEDED)
    options = sft.read_options([*SMALL, "--backends", "verl", "--warmup", "1", "--steps", "1",
                                "--set", "verl.strategy=fsdp2",
                                "--override", "trainer.device=cpu"])  # fmt: skip
    found = sft.run(options, tmp_path, machine)["backends"]["verl"]
    assert "error" not in found, found["error"]
    assert [each["step"] for each in found["rows"]] == [1, 2]
    assert found["tokens"] == found["rows"][-1]["perf/tokens"]
    assert found["precision"].startswith("bfloat16")
