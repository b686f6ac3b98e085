"""A training that can't start is refused with one sentence, from facts given by hand."""

from __future__ import annotations

import json
import re
import socket
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conf.schema import Config, ModelSection, PPOSection, VerlSection
from steps.errors import ConfigError, EnvironmentIdError, ModelError
from steps.training import machine as machines
from steps.training import verl_preflight
from steps.training.machine import Gpu, Machine, visible_gpus
from steps.training.model_size import ModelSize, num_cached, num_parameters, size_of
from steps.training.verl_common import environment
from steps.training.verl_preflight import (
    CONTEXT_BYTES,
    NEEDED,
    cached_share,
    check_architecture,
    check_cpus,
    check_ppo,
    check_sft,
    check_world,
    estimate,
)

GIB = 1 << 30
SIZE = ModelSize(
    parameters=1_000_000_000, layers=10, hidden=1000, ffn=4000, vocab=100_000,
    kv_heads=2, cached=10 * 2 * 2 * 100,
)  # fmt: skip
H100 = Gpu(name="H100", total=80 * GIB, free=79 * GIB)
WELL = Machine(gpus=(H100, H100), cpus=16, shared_memory=8 * GIB, memory=128 * GIB, versions=NEEDED)


def config(**verl: Any) -> Config:
    return Config(device="cuda", verl=VerlSection(**verl), model=ModelSection(from_scratch=False))


def test_a_machine_that_has_everything_passes() -> None:
    check_sft(config(n_gpus_per_node=2), WELL, SIZE, tokens=16384)
    check_ppo(config(n_gpus_per_node=2), WELL, SIZE, tokens=16384)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpus": ()}, "needs a CUDA GPU, and none is seen"),
        ({"gpu_error": "driver too old"}, "can't use CUDA here: driver too old"),
        ({"gpus": (H100,)}, "n_gpus_per_node is 2, and 1 are seen here .H100.*n_gpus_per_node=1"),
        ({"versions": {**NEEDED, "verl": "0.8.0"}}, r"verl 0\.8\.0 \(needed: 0\.9\.1\)"),
        (
            {"versions": {"verl": "0.9.1", "torch": "2.11.0"}},
            r"ray is missing \(needed: 2\.60\.0\), transformers is missing",
        ),
        ({"shared_memory": 64 << 20}, "/dev/shm has 0.06 GiB free, and 0.25"),
        ({"gpus": (H100, replace(H100, free=20 * GIB))}, r"GPU 1 \(H100\) has 20\.0 GiB free of"),
    ],
)
def test_what_is_missing_for_finetuning_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_sft(config(n_gpus_per_node=2), replace(WELL, **changed), SIZE, tokens=16384)


@pytest.mark.parametrize(
    ("changed", "verl", "words"),
    [
        ({"versions": {**NEEDED, "vllm": "0.23.0"}}, {}, r"vllm 0\.23\.0 \(needed: 0\.24\.0\)"),
        ({"cpus": 6}, {}, "reserves 7 CPU cores .*this process has 6.*resources.ppo_train.cpu"),
        ({"shared_memory": GIB}, {}, r"/dev/shm has 1\.00 GiB free, and 2\.00"),
        ({}, {"gpu_memory_utilization": 0.9}, r"vLLM takes 90% of GPU 0 .*verl\.offload=true"),
        ({"gpus": (replace(H100, free=30 * GIB),) * 2}, {}, "5.6 GiB of the critic's states"),
    ],
)
def test_what_is_missing_for_ppo_is_named(
    changed: dict[str, Any], verl: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_ppo(config(n_gpus_per_node=2, **verl), replace(WELL, **changed), SIZE, tokens=16384)


def test_of_a_cluster_that_exists_only_versions_are_judged() -> None:
    bare = Machine(versions=NEEDED)
    check_ppo(config(ray_address="auto"), bare, SIZE, tokens=16384)
    with pytest.raises(ConfigError, match="verl is missing"):
        check_ppo(config(ray_address="auto"), Machine(), SIZE, tokens=16384)


def test_a_cluster_must_answer() -> None:
    well = Machine(versions=NEEDED)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_ppo(config(ray_address=address), well, SIZE, tokens=16384)
    with pytest.raises(ConfigError, match=rf"no Ray cluster answers at {address} .*ray start"):
        check_ppo(config(ray_address=address), well, SIZE, tokens=16384)


def test_without_a_critic_its_states_need_no_room() -> None:
    tight = replace(WELL, gpus=(replace(H100, free=34 * GIB),) * 2)
    settings = config(n_gpus_per_node=2, gpu_memory_utilization=0.3)
    with pytest.raises(ConfigError, match=r"beside 11\.2 GiB of trained models"):
        check_ppo(settings, tight, SIZE, tokens=16384)
    alone = replace(settings, ppo=PPOSection(use_critic=False))
    check_ppo(alone, tight, SIZE, tokens=16384)


QWEN = ModelSize(
    parameters=1_543_714_304, layers=28, hidden=1536, ffn=8960, vocab=151_936,
    kv_heads=2, cached=28 * 2 * 2 * 128,
)  # fmt: skip
LARGE = ModelSize(
    parameters=7_615_616_512, layers=28, hidden=3584, ffn=18944, vocab=152_064,
    kv_heads=4, cached=28 * 2 * 4 * 128,
)  # fmt: skip


def test_the_papers_model_fits_a_card_of_80_gb() -> None:
    """Between updates no gradients are held: states of both, and vLLM's share beside them."""
    card = Gpu(name="H100", total=int(79.11 * GIB), free=int(78.5 * GIB))
    check_ppo(config(), replace(WELL, gpus=(card,)), QWEN, tokens=16384)


def test_a_critic_beside_adapters_is_counted_whole() -> None:
    settings = config(max_tokens_per_gpu=4096)
    settings.model.lora_rank = 64
    h200 = Gpu(name="H200", total=140 * GIB, free=139 * GIB)
    with pytest.raises(ConfigError, match=r"training the actor .* and 85\.1 GiB of the critic's"):
        check_ppo(settings, replace(WELL, gpus=(H100,)), LARGE, tokens=4096)
    with pytest.raises(ConfigError, match=r"training the critic .*gradients 28\.4"):
        check_ppo(settings, replace(WELL, gpus=(h200,)), LARGE, tokens=4096)
    settings.ppo.use_critic = False
    check_ppo(settings, replace(WELL, gpus=(h200,)), LARGE, tokens=4096)


def test_vllms_share_must_hold_its_weights() -> None:
    settings = config(offload=True, gpu_memory_utilization=0.3)
    settings.model.lora_rank, settings.ppo.use_critic = 64, False
    card = Gpu(name="A6000", total=44 * GIB, free=43 * GIB)
    host = replace(WELL, gpus=(card, card))
    with pytest.raises(ConfigError, match=r"weights are 14\.2 GiB a GPU, .* is 13\.2 GiB"):
        check_ppo(settings, host, LARGE, tokens=2048)
    settings.verl.tensor_parallel_size = settings.verl.n_gpus_per_node = 2
    check_ppo(settings, host, LARGE, tokens=2048)


def test_vllms_share_must_hold_a_conversation_at_full_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A token costs 28 layers x 2 x 4 heads x 128 x 2 bytes, 56 KiB; 32,768 of them 1.75 GiB."""
    assert cached_share(LARGE, 1) == 28 * 1024
    settings = config(offload=True, gpu_memory_utilization=0.34, max_tokens_per_gpu=32768)
    settings.model.lora_rank, settings.ppo.use_critic = 64, False
    settings.ppo.env_groups, settings.ppo.group_size = 4, 4
    settings.sampling.max_model_len = 32768
    card = Gpu(name="A6000", total=44 * GIB, free=43 * GIB)
    host = replace(WELL, gpus=(card, card))
    with pytest.raises(ConfigError, match=r"keeps 1\.75 GiB of one .*=32768.* has 0\.77 GiB left"):
        check_ppo(settings, host, LARGE, tokens=2048)
    settings.verl.gpu_memory_utilization = 0.45
    check_ppo(settings, host, LARGE, tokens=2048)  # 5.6 GiB
    assert "GPU 0 holds 3 of the 16 conversations" in caplog.text
    caplog.clear()
    settings.sampling.max_model_len = 4096
    check_ppo(settings, host, LARGE, tokens=2048)
    assert not caplog.text


def test_gpus_that_share_a_copy_share_its_heads() -> None:
    assert [cached_share(LARGE, gpus) for gpus in (1, 2, 4, 8)] == [28672, 14336, 7168, 7168]


@pytest.mark.parametrize(
    ("settings", "cached"),
    [
        ({"num_attention_heads": 4}, 10 * 2 * 64),
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, 10 * 2 * 32),
        ({"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}, 10 * 2 * 64),
        ({"num_attention_heads": 4, "sliding_window": 8}, 0),
        ({"num_attention_heads": 4, "sliding_window": 8, "use_sliding_window": False}, 1280),
        (
            {
                "num_attention_heads": 4,
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention"] * 5,
            },
            5 * 2 * 64,
        ),
        ({"num_attention_heads": 4, "kv_lora_rank": 12, "qk_rope_head_dim": 4}, 10 * 16),
    ],
)
def test_what_a_token_keeps_is_read_off_the_configuration(
    settings: dict[str, Any], cached: int
) -> None:
    assert num_cached({"hidden_size": 64, "num_hidden_layers": 10, **settings}) == cached


def test_what_is_kept_in_host_memory_must_fit_there() -> None:
    settings, host = config(offload=True), replace(WELL, memory=20 * GIB)
    with pytest.raises(ConfigError, match=r"keep 22\.4 GiB in host memory"):  # actor and critic
        check_ppo(settings, host, SIZE, tokens=16384)
    check_sft(settings, host, SIZE, tokens=16384)
    settings.ppo.use_critic, settings.ppo.kl_coef = False, 0.01
    check_ppo(settings, host, SIZE, tokens=16384)  # 11.2, and 3.7 of the reference
    with pytest.raises(ConfigError, match=r"keep 14\.9 GiB in host memory"):
        check_ppo(settings, replace(WELL, memory=12 * GIB), SIZE, tokens=16384)


def test_three_cores_a_gpu_and_one_for_the_driver() -> None:
    check_cpus(Machine(cpus=13), 4)
    with pytest.raises(ConfigError, match="reserves 13 CPU cores"):
        check_cpus(Machine(cpus=12), 4)


def test_memory_is_counted_by_hand() -> None:
    found = estimate(config(), SIZE, num_gpus=2, tokens=1000)
    assert found.states == 6_000_000_000  # 12 bytes a parameter, half of them here
    assert found.gradients == 2_000_000_000
    assert found.working == 1_200_000_000  # 2 bytes, twice a unit of 0.1e9 + 2 * 100,000 * 1,000
    assert found.activations == 1000 * 1000 * (34 + 20)
    assert found.logits == 1000 * 100_000 * 10
    assert found.total == 8_000_000_000 + 1_200_000_000 + 54_000_000 + 1_000_000_000 + CONTEXT_BYTES
    single = estimate(config(dtype="float32"), SIZE, num_gpus=2, tokens=1000)
    assert single.states == found.states
    assert single.working == 2_400_000_000
    assert single.activations == 1000 * 1000 * (68 + 40)
    assert single.logits == 1000 * 100_000 * 14


def test_adapters_and_checkpointing_change_the_count() -> None:
    settings = config(gradient_checkpointing=False)
    settings.model.lora_rank = 8
    found = estimate(settings, SIZE, num_gpus=1, tokens=1000)
    adapters = 8 * (11 * 1000 + 3 * 4000) * 10
    assert found.states == 4_000_000_000 + 8 * adapters
    assert found.gradients == 4 * adapters
    assert found.activations == 1000 * 1000 * (340 + 20)


def test_the_versions_are_those_of_the_extra(root: Path) -> None:
    pins = re.findall(r'"([\w-]+)(?:\[\w+\])?==([\d.]+)"', (root / "pyproject.toml").read_text())
    extra = {name.lower(): version for name, version in pins}
    assert {name: extra[name] for name in NEEDED} == NEEDED


def test_a_gpt2_is_refused_and_a_llama_isnt() -> None:
    check_architecture(SimpleNamespace(model_type="llama", num_key_value_heads=2))
    with pytest.raises(ConfigError, match="can't train a gpt2"):
        check_architecture(SimpleNamespace(model_type="gpt2"))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "sizes"),
    [(4, 2, [2, 4]), (12, 4, [2, 4, 12]), (14, 2, [2, 14]), (9, 3, [3, 9]), (6, 6, [2, 3, 6])],
)
def test_gpus_that_share_a_sequence_have_whole_heads(
    heads: int, kv_heads: int, sizes: list[int]
) -> None:
    """As verl's `apply_monkey_patch` asserts minutes later."""
    model = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv_heads)
    for sharing in range(2, 16):
        if sharing in sizes:
            check_architecture(model, sharing=sharing)
            continue
        words = f"sequence_parallel_size={sharing} can't share out the model's {heads} attention"
        with pytest.raises(ConfigError, match=words):
            check_architecture(model, sharing=sharing)


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("0", 1), ("0,1,2", 2), ("", 0), ("-1", 0), ("GPU-uuid", 1)]
)
def test_gpus_are_guessed_by_device_files(visible: str | None, count: int, tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(tmp_path, given) == count


@pytest.mark.parametrize(
    ("limit", "available"), [("max", 4 * GIB), (str(3 * GIB), 2 * GIB), (str(9 * GIB), 4 * GIB)]
)
def test_memory_is_what_the_control_group_leaves(
    limit: str, available: int, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {4 * 1024 * 1024} kB\n")
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(str(GIB))
    assert machines._memory(tmp_path / "meminfo", tmp_path) == available


def safetensors(path: Path, shapes: dict[str, list[int]]) -> None:
    header = {name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_a_models_size_is_read_off_its_files(tmp_path: Path) -> None:
    safetensors(tmp_path / "model-1.safetensors", {"a": [10, 3], "b": [5]})
    safetensors(tmp_path / "model-2.safetensors", {"c": [7]})
    assert num_parameters(tmp_path) == 42
    shape = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 11}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    assert size_of(tmp_path) == ModelSize(
        parameters=42, layers=2, hidden=8, ffn=32, vocab=11, kv_heads=1, cached=2 * 2 * 8
    )
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json has no hidden_size"):
        size_of(tmp_path)


def test_a_world_that_only_this_process_can_import_is_refused(root: Path, tmp_path: Path) -> None:
    check_world("frozenlake", {"size": 3}, environment(tmp_path / "metrics"))
    check_world("tests.training.toys:Doors", {}, environment(tmp_path / "metrics"))
    with pytest.raises(EnvironmentIdError, match=r"'nowhere:World' can't be made in another"):
        check_world("nowhere:World", {}, environment(tmp_path / "metrics"))


def test_a_world_that_takes_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_world.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(verl_preflight, "WORLD_TIMEOUT_S", 0.5)
    with pytest.raises(ConfigError, match=r"'slow_world:W' wasn't made .* within 0\.5 s"):
        check_world("slow_world:W", {}, environment(tmp_path / "metrics"))
