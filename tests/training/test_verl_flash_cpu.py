# ruff: noqa: E402 (verl may be missing)
"""Rows packed into one sequence, and sequences shared by processes (Ulysses), on CPU processes.

That is what verl does where flash-attn is installed. A stand-in has its place here
(`flash_on_cpu`); all else is verl's own, and the numbers are the local backend's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

from steps.training import ppo_verl, sft_verl
from tests.training import flash_on_cpu
from tests.training.llamas import untrained_llama
from tests.training.test_sft_verl import MACHINE
from tests.training.test_sft_verl_cpu import (
    finetune,
    local_losses,
    losses_of,
    on_cpu,  # noqa: F401 (a fixture of every test here, too)
    settings,
)
from tests.training.test_verl_parity import compare_engines
from tests.training.toys import BreakingOff, PowerCutError

FOUR = replace(MACHINE, gpus=MACHINE.gpus * 2)
PATCHED = "Monkey patch _flash_attention_forward in transformers.integrations.flash_attention"


@pytest.fixture(autouse=True)
def with_flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sft_verl, ppo_verl):
        monkeypatch.setattr(module, "kernels", flash_on_cpu.kernels)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("llama")
    return untrained_llama(directory, num_attention_heads=4, num_key_value_heads=2, head_dim=8)


@pytest.mark.parametrize(
    ("gpus", "sequence", "tokens"),
    [
        (1, 1, 16384),
        (2, 1, 16384),
        (2, 2, 16384),
        # A row or two a micro-batch, and nothing to learn in the first process's share; a head of
        # keys and values serves two processes.
        (4, 4, 4),
    ],
)
def test_losses_of_packed_rows_are_those_of_the_local_backend(
    gpus: int, sequence: int, tokens: int, llama: str, tmp_path: Path
) -> None:
    config = settings(schedule="cosine")
    config.verl.n_gpus_per_node, config.verl.sequence_parallel_size = gpus, sequence
    config.verl.max_tokens_per_gpu = tokens
    found = finetune(config, llama, tmp_path, machine=FOUR)
    wanted, last = local_losses(config, llama, tmp_path / "local")
    assert losses_of(tmp_path) == pytest.approx(wanted, rel=1e-4)
    assert wanted[-1] < 0.6 * wanted[0]
    told = {key: value for key, value in last.items() if "validation" in key or key == "sft/lr"}
    assert {key: found["curve"][-1][key] for key in told} == pytest.approx(told, rel=1e-4)
    assert PATCHED in (tmp_path / "verl_sft.log").read_text()


def test_padded_rows_give_the_same_losses(llama: str, tmp_path: Path) -> None:
    config = settings()
    config.verl.remove_padding = "never"
    finetune(config, llama, tmp_path)
    wanted, _ = local_losses(config, llama, tmp_path / "local")
    assert losses_of(tmp_path) == pytest.approx(wanted, rel=1e-4)
    assert PATCHED not in (tmp_path / "verl_sft.log").read_text()


def test_processes_that_share_sequences_go_on_where_they_were_cut_off(
    llama: str, tmp_path: Path
) -> None:
    config = settings()
    config.verl.n_gpus_per_node = config.verl.sequence_parallel_size = 2
    store = BreakingOff(tmp_path / "store", last_step=4)
    with pytest.raises(PowerCutError):
        finetune(config, llama, tmp_path / "one", store)
    newest = store.newest("f")
    assert newest is not None
    finetune(config, llama, tmp_path / "two", store)
    wanted, _ = local_losses(config, llama, tmp_path / "local")
    assert losses_of(tmp_path / "two") == pytest.approx(wanted[newest[0] :], rel=1e-4)


@pytest.mark.parametrize("processes", [1, 2])
def test_ppo_on_packed_rows_is_that_of_the_local_backend(processes: int, tmp_path: Path) -> None:
    """Actor and critic; two processes share each sequence."""
    compare_engines(tmp_path, processes=processes, sequence_parallel_size=processes)
