"""The program that runs PPO by verl: `python -m steps.training.verl_driver RUN.json`.

It imports Ray and Hydra alone. verl's own entry point imports torch and vLLM here before anything
else may start; in this one Ray, the agent workers, verl's trainer and vLLM's look at the model's
class start beside one another. Each line that says a phase begins with `MARK`, for whoever watches
(`PHASES`). What the file holds is written by `steps.training.ppo_verl`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steps.errors import ConfigError, SPAError
from steps.training.verl_launch import MISTAKE, Phase
from steps.training.verl_workers import AgentWorker, Runner

MARK = "[spa]"
CPUS_PER_GPU = 16
"""Ray counts CPUs, it doesn't bind them; verl reserves some for each GPU."""
PHASES = (
    Phase(name="starting Ray", mark=r"\[spa\].*configuration composed"),
    Phase(name="importing verl", mark=r"\[spa\].*Ray is up"),
    Phase(name="loading the models", mark=r"\[spa\].*trainer made"),
    Phase(name="starting the inference servers", mark="reward loop manager initialized"),
    Phase(name="loading the checkpoint", mark="checkpoint engine manager initialized"),
    Phase(name="the first step", mark=r"\[spa\].*ready"),
)
INSPECT = """
import sys
from vllm.model_executor.models.registry import ModelRegistry
for name in sys.argv[1:]:
    if name in ModelRegistry.models:
        ModelRegistry.models[name].inspect_model_cls()
"""
"""Fills vLLM's cache of what a model class can do, by vLLM's own code; verl's server waits for it
28 s otherwise, where its machine hasn't seen that class before."""
BEGAN = "SPA_VERL_BEGAN"
"""Environment variable with the clock at the driver's start, for all processes."""


def say(text: str) -> None:
    """One phase, with the seconds since the driver began."""
    seconds = time.time() - float(os.environ.get(BEGAN) or time.time())
    print(f"{MARK} {seconds:6.1f} s  {text}", flush=True)  # noqa: T201


def compose(overrides: Sequence[str], name: str = "ppo_trainer") -> Any:
    """verl's configuration with our overrides, without importing verl; `name` is PPO's or SFT's."""
    import hydra

    with hydra.initialize_config_dir(config_dir=str(_config_dir()), version_base=None):
        return hydra.compose(name, overrides=list(overrides))


def _config_dir() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("verl isn't installed: pip install 'spa-agents[gpu]'")
    return Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"


def worker_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What every process of the run needs; what the caller has set stays as it is."""
    wanted = {
        "TOKENIZERS_PARALLELISM": "true",
        "NCCL_DEBUG": "WARN",
        "VLLM_LOGGING_LEVEL": "WARN",
        # verl turns vLLM's cache of compiled graphs off; it saves 25 s of each start but the first.
        "VLLM_DISABLE_COMPILE_CACHE": "0",
    }
    forwarded = ("PYTHONPATH", "VERL_FILE_LOGGER_PATH", "HF_HUB_OFFLINE", "HF_HOME", BEGAN)
    return {
        **{name: value for name, value in wanted.items() if name not in given},
        **{name: given[name] for name in forwarded if name in given},
        "TRANSFER_QUEUE_ENABLE": "1",
        "VERL_FULL_DETERMINISM": "0",
    }


def start_ray(address: str, num_gpus: int) -> None:
    """Join the cluster at `address`, or start one on this machine."""
    import ray

    runtime_env = {
        "env_vars": worker_environment(os.environ),
        "worker_process_setup_hook": "steps.training.verl_hooks.install",
    }
    if address:
        try:
            ray.init(address=address, runtime_env=runtime_env)
        except ConnectionError as error:
            raise ConfigError(cannot_join(address, str(error.__cause__ or error))) from error
        return
    num_cpus = max(os.cpu_count() or 1, CPUS_PER_GPU * max(num_gpus, 1))
    ray.init(
        address="local",  # whatever RAY_ADDRESS says, or has been started here
        num_cpus=num_cpus,
        include_dashboard=False,
        runtime_env=runtime_env,
    )


def cannot_join(address: str, why: str) -> str:
    """The sentence for a cluster that didn't take us; `why` is Ray's."""
    if "AuthenticationError" in why:
        return (
            f"the Ray cluster at {address} (verl.ray_address) asks for a token, and was shown "
            "none or another: set RAY_AUTH_MODE=token for the flow and for `ray start` on every "
            "host, with one ~/.ray/auth_token (or RAY_AUTH_TOKEN), or RAY_AUTH_MODE=disabled for "
            "all of them. `ray start --head` asks for one wherever that file exists."
        )
    return f"the Ray cluster at {address} (verl.ray_address) can't be joined: {why.splitlines()[0]}"


def run(run_file: Path) -> None:
    """Train as the file says; whatever fails is raised here."""
    plan = json.loads(run_file.read_text("utf-8"))
    inspection = _inspect(plan["architectures"])
    config = compose(plan["overrides"])
    say("configuration composed")
    start_ray(plan["ray_address"], plan["num_gpus"])
    say("Ray is up")
    import ray

    try:
        worker = ray.remote(AgentWorker).options(scheduling_strategy="SPREAD", max_concurrency=1000)
        workers = [worker.remote() for _ in range(plan["agent_workers"])]
        runner = ray.remote(Runner).options(num_cpus=1).remote()
        ray.get(runner.run.remote(config, str(run_file), workers))
        say("done")
    finally:
        if inspection is not None and inspection.poll() is None:
            inspection.terminate()
        ray.shutdown()


def _inspect(architectures: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start vLLM's look at the model's class; a failure of it is vLLM's to report, later."""
    if not architectures or importlib.util.find_spec("vllm") is None:
        return None
    return subprocess.Popen(
        [sys.executable, "-c", INSPECT, *architectures],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main(arguments: Sequence[str]) -> int:
    """The program; 0 where the training came to its end, `MISTAKE` where one of ours ended it."""
    os.environ[BEGAN] = str(time.time())
    say("driver started")
    try:
        run(Path(arguments[0]))
    except Exception as error:
        traceback.print_exc()
        say("failed")
        return MISTAKE if is_mistake(error) else 1
    return 0


def is_mistake(error: Exception) -> bool:
    """Whether what ended a training, here or in a process of Ray's, is a `SPAError`."""
    return isinstance(error, SPAError) or isinstance(getattr(error, "cause", None), SPAError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
