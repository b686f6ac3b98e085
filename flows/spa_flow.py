"""SPAFlow: the pipeline as a Metaflow flow. Wiring only; each step calls the function of its name.

    python flows/spa_flow.py run --env frozenlake
    python flows/spa_flow.py run --env frozenlake,frozenlake_deterministic --profile smoke
    python flows/spa_flow.py run --experiment vanilla_rl --override "ppo.lr=1e-5 sft.lr=1e-3"
    python flows/spa_flow.py run --env frozenlake_upstream --start-from RUN
    python flows/spa_flow.py resume --origin-run-id RUN

This file is loaded in every task, so it imports nothing heavy: a stage is imported in its step.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # steps, envs, conf without install
sys.path.append(str(Path.cwd()))  # a game of one's own: --env my_game:MyGame

import conf
from steps.errors import ConfigError, SPAError
from steps.orchestration import command_line, runs

runs.name_user()
runs.skip_pylint()

from metaflow import (  # noqa: E402
    Config,
    FlowSpec,
    Parameter,
    card,
    config_expr,
    current,
    package_sources,
    resources,
    retry,
    step,
)

if TYPE_CHECKING:
    from steps.orchestration.stages import Stage

Result = dict[str, Any]
"""What a stage returns: plain values."""
ARGV = [*sys.argv] if __name__ == "__main__" else [__file__]
"""The command line where it is this flow's own (Metaflow's Runner loads the file in a process
whose arguments are another's)."""


def read_settings(given: str) -> dict[str, Any]:
    """Parser of the flow's Config: composes the settings of `run` from the command line."""
    starts = command_line.is_starting(ARGV) and command_line.command_of(ARGV) == "run"
    try:
        if given.strip() not in ("", "{}"):
            raise ConfigError("settings come from --env, --profile, --override ..., not --config.")
        request = runs.read_request(ARGV[1:] if starts else [])
        if starts:
            from steps import preflight
            from steps.orchestration.datastore_root import ready_root
            from steps.storage import git_commit

            settings = runs.settings_of(request, check=preflight.check, find=earlier_model)
            configs = [runs.config_of(settings, env_id) for env_id in settings["envs"]]
            preflight.check_together(configs, runs.max_workers(ARGV))
            ready_root(ARGV, SPAFlow.__name__)  # last, so that what is refused leaves no folder
            settings["commit"] = git_commit()
        else:
            settings = runs.settings_of(request)
    except SPAError as error:
        runs.refuse(error)
    if starts:
        lines = [*runs.describe(settings), runs.elsewhere(ARGV, request.cluster)]
        print("\n".join(filter(None, lines)), flush=True)
    return settings


def earlier_model(request: runs.Request, config: conf.Config) -> dict[str, Any]:
    """The earlier run's results that one environment starts from, found and judged."""
    from steps import preflight
    from steps.orchestration import earlier

    start = earlier.find(request, config)
    earlier.check_place(start, ARGV)
    if start["model_dir"]:
        preflight.check_start(config, start["model_dir"])
    return start


def sized(name: str) -> Callable[[Any], Any]:
    """`@resources` of a step, from the settings."""
    wanted = {key: config_expr(f"cfg.resources.{name}.{key}") for key in ("cpu", "gpu", "memory")}
    return resources(**wanted)  # type: ignore[no-any-return]


@package_sources(["../steps", "../envs", "../conf"], suffixes=[".py", ".yaml", ".jsonl"])
class SPAFlow(FlowSpec):
    """Self-play agents: learn a game's rules by self-play, then to win it.

    `run --help` explains the options; `resume --origin-run-id RUN` takes up a run that ended early.
    """

    cfg = Config("cfg", default_value="{}", parser=read_settings, help="Composed by the options.")
    env = Parameter(
        "env",
        default="frozenlake",
        help=f"Environments, separated by commas: {', '.join(conf.known('env'))}, or module:Class.",
    )
    model = Parameter(
        "model",
        default="",
        help=f"Model: {', '.join(conf.known('model'))}, a Hugging Face directory or owner/name; "
        "empty is the profile's.",
    )
    profile = Parameter(
        "profile",
        default="",
        help=f"Size of the run: {', '.join(conf.known('profile'))}; empty is laptop.",
    )
    experiment = Parameter(
        "experiment", default="spa", help=f"Method: {', '.join(conf.known('experiment'))}."
    )
    cluster = Parameter(
        "cluster",
        default="local",
        help=f"Sizes of the tasks: {', '.join(conf.known('cluster'))}.",
    )
    override = Parameter(
        "override",
        default="",
        help='Settings in Hydra\'s syntax, separated by blanks: "ppo.lr=1e-5 sft.lr=1e-3"; '
        "may be given several times; log_level=debug prints every setting.",
    )
    seed = Parameter("seed", default=0, help="Seed of the whole run, 0 or more.")
    cache = Parameter(
        "cache",
        default="auto",
        help=f"Results of earlier runs: {', '.join(runs.CACHE_MODES)}. A stage that an earlier run "
        "computed from the same settings, code and inputs is reused; refresh computes it anew and "
        "keeps that, off neither reuses nor keeps. `resume` reuses what its own run has computed.",
    )
    start_from = Parameter(
        "start-from",
        default="",
        help="Model to start from, in place of self-play and finetuning: RUN[:STAGE][@ENV] of an "
        "earlier run (stage sft_train or ppo_train), or a model directory.",
    )
    start_at = Parameter(
        "start-at",
        default="ppo_train",
        help=f"First stage that is computed then: {', '.join(runs.STARTS_AT)}.",
    )

    @sized("start")
    @step
    def start(self) -> None:
        """Store the settings, open the tracking run, and go on with each environment."""
        from steps.tracking import start_parent_run

        self.settings = self.cfg.to_dict()
        self.environments = list(self.settings["envs"])
        config = runs.config_of(self.settings, self.environments[0])
        runs.set_logging(config.log_level)
        name = f"{config.experiment} {','.join(self.environments)} {config.profile}"
        tags = {"metaflow.run": f"{current.flow_name}/{current.run_id}"}
        name += f" seed {config.seed}"
        self.tracking_run = start_parent_run(config, name, tags)
        self.next(self.selfplay_generate, foreach="environments")

    @card(type="blank")
    @sized("selfplay_generate")
    @retry(times=runs.RETRIES, minutes_between_retries=0)
    @step
    def selfplay_generate(self) -> None:
        """Play, and write trajectories with the true states in them."""
        from steps.report.blocks import selfplay_blocks
        from steps.selfplay_generate import selfplay_generate

        def compute(stage: Stage) -> Result:
            model = "" if stage.config.model.from_scratch else stage.config.model.path
            return selfplay_generate(
                stage.config, model_dir=model, batches=stage.batches, **stage.outputs
            )

        self.env_id, self.failure = self.input, None
        run_stage(self, "selfplay", compute, selfplay_blocks)
        self.next(self.filter_format)

    @card(type="blank")
    @sized("filter_format")
    @retry(times=runs.RETRIES, minutes_between_retries=0)
    @step
    def filter_format(self) -> None:
        """Keep the well-formed turns as rows to imitate."""
        from steps.filter_format import filter_format
        from steps.report.blocks import filter_blocks

        def compute(stage: Stage) -> Result:
            played = stage.fetch(self.selfplay) / self.selfplay["file"]
            return filter_format(stage.config, trajectories=[played], **stage.outputs)

        run_stage(self, "filtered", compute, filter_blocks)
        self.next(self.sft_train)

    @card(type="blank")
    @sized("sft_train")
    @retry(times=runs.RETRIES, minutes_between_retries=0)
    @step
    def sft_train(self) -> None:
        """Learn the world; from the second round on from the model's own play."""
        from steps.report.blocks import sft_blocks
        from steps.sft_rounds import sft_rounds

        def compute(stage: Stage) -> Result:
            return sft_rounds(
                stage.config,
                data_dir=stage.fetch(self.filtered),
                checkpoints=stage.checkpoints,
                batches=stage.batches,
                **stage.outputs,
            )

        run_stage(self, "sft", compute, sft_blocks)
        self.next(self.ppo_train)

    @card(type="blank")
    @sized("ppo_train")
    @retry(times=runs.RETRIES, minutes_between_retries=0)
    @step
    def ppo_train(self) -> None:
        """Learn to win."""
        from steps.ppo_train import ppo_train
        from steps.report.blocks import ppo_blocks

        def compute(stage: Stage) -> Result:
            return ppo_train(
                stage.config,
                model_dir=str(stage.fetch(self.sft) / self.sft["model"]),
                checkpoints=stage.checkpoints,
                **stage.outputs,
            )

        run_stage(self, "ppo", compute, ppo_blocks)
        self.next(self.evaluate)

    @card(type="blank")
    @sized("evaluate")
    @retry(times=runs.RETRIES, minutes_between_retries=0)
    @step
    def evaluate(self) -> None:
        """Measure both models on puzzles that no other stage draws."""
        from steps.evaluate import evaluate
        from steps.report.blocks import evaluate_blocks

        def compute(stage: Stage) -> Result:
            kept = {"after_sft": self.sft, "final": self.ppo}
            found = {name: each for name, each in kept.items() if "directory" in each}
            models = {name: str(stage.fetch(each) / each["model"]) for name, each in found.items()}
            return evaluate(stage.config, model_dirs=models, **stage.outputs)

        run_stage(self, "report", compute, evaluate_blocks)
        self.scores = self.report.get("summary", {})  # the join reads these two, which are small
        self.final_model = {**self.ppo.get("directory", {}), "model": self.ppo.get("model")}
        self.next(self.join)

    @card(type="blank")
    @step
    def join(self, inputs: Iterable[Any]) -> None:
        """Gather the environments."""
        from steps.orchestration.cards import show
        from steps.report.blocks import join_blocks

        each = {branch.env_id: branch for branch in inputs}
        first = next(iter(each.values()))
        self.settings, self.tracking_run = first.settings, first.tracking_run
        failures = {env_id: branch.failure for env_id, branch in each.items() if branch.failure}
        branches = {env_id: branch for env_id, branch in each.items() if env_id not in failures}
        self.summary = {env_id: branch.scores for env_id, branch in branches.items()}
        self.models = {env_id: branch.final_model for env_id, branch in branches.items()}
        show(join_blocks, self.summary, of=runs.name_of(self.settings, [*each], current.run_id))
        if failures:
            sys.exit(runs.failure_table(failures, finished=list(branches)))
        self.next(self.end)

    @step
    def end(self) -> None:
        """Close the tracking run and say where the models are; `summary` holds the results."""
        from steps.report.tables import final_scores
        from steps.tracking import finish_parent_run

        config = runs.config_of(self.settings, next(iter(self.settings["envs"])))
        tags = {"metaflow.run": f"{current.flow_name}/{current.run_id}"}  # `resume` goes on in it
        scores = final_scores(self.summary)
        finish_parent_run(config, self.tracking_run, metrics=scores, tags=tags)
        for env_id, kept in self.models.items():
            print(f"{env_id}: model in {kept['url']}/{kept['model']}")


def opened(flow: SPAFlow) -> AbstractContextManager[Stage]:
    """The surroundings of this task's stage."""
    from steps.orchestration.stages import open_stage
    from steps.preflight import check_task, settled
    from steps.tracking import open_tracker

    config = settled(runs.config_of(flow.settings, flow.env_id), current.step_name)
    check_task(config, current.step_name)
    tracker = partial(
        open_tracker,
        config,
        run_name=f"{flow.env_id} {current.step_name}",
        stage=current.step_name,
        parent_run_id=flow.tracking_run or None,
        tags={"metaflow.task": current.pathspec},
    )
    return open_stage(flow, config, current.step_name, open_tracker=tracker)


def run_stage(
    flow: SPAFlow,
    artifact: str,
    compute: Callable[[Stage], Result],
    blocks: Callable[[Any], list[Any]],
) -> None:
    """Do a stage and put its result into `flow.<artifact>` and on the card.

    The result is that of the run that this one starts from, an earlier run's with the same
    fingerprint, or computed. `fingerprint` and `cache_hit` (the task that computed it, or None) are
    artifacts, too, and so is `mlflow_run`, the id of the stage's MLflow run (or `key:` and
    its tag `spa.key`, where MLflow hasn't told the id). In a branch that has failed before nothing
    is done.
    """
    from steps.orchestration.cards import say, show
    from steps.orchestration.stages import accounted_for
    from steps.report.taken import unless_taken

    setattr(flow, artifact, {})
    flow.cache_hit, flow.mlflow_run = None, ""
    if not flow.failure:
        # The first notes a failure that must not end the other branches, also one of the second.
        with accounted_for(flow, current.step_name), opened(flow) as stage:
            setattr(flow, artifact, result_of(flow, stage, compute))
            stage.tracker.close()
            flow.mlflow_run = stage.tracker.run_id
    failure: dict[str, Any] | None = flow.failure
    name = runs.name_of(flow.settings, [flow.env_id], current.run_id)
    if failure:
        say(f"`{name}`\n\n**Failed** in {failure['step']}: {failure['error']}")
    else:
        show(unless_taken(blocks), getattr(flow, artifact), flow.cache_hit, of=name)


def result_of(flow: SPAFlow, stage: Stage, compute: Callable[[Stage], Result]) -> Result:
    """A stage's result, wherever it comes from."""
    from steps.orchestration.earlier import adopted
    from steps.orchestration.fingerprints import fingerprint_of_taken

    flow.fingerprint = stage.fingerprint
    taken = adopted(flow.settings.get("start", {}).get(flow.env_id, {}), stage)
    if taken is not None:
        flow.fingerprint = fingerprint_of_taken(stage.parts, taken["taken_from"])
        return taken
    outcome = stage.settle(lambda: compute(stage))
    flow.fingerprint, flow.cache_hit = outcome.fingerprint, outcome.cache_hit
    return outcome.result


def main() -> None:
    """Metaflow's command line, with our last word after `run` and `resume`."""
    starts = command_line.is_starting(ARGV)
    if starts:
        from steps.orchestration.datastore_root import ready_root
        from steps.orchestration.origin import check_origin, origin_settings

        try:
            if command_line.command_of(ARGV) == "resume":
                check_origin(ARGV, SPAFlow.__name__)
                settings = origin_settings(ARGV, SPAFlow.__name__)
                sys.stdout.writelines(f"{line}\n" for line in runs.describe(settings))
                ready_root(ARGV, SPAFlow.__name__)
        except SPAError as error:
            runs.refuse(error)
        sys.argv[:] = command_line.shown_line(ARGV)  # Metaflow stores the parameter as it reads it
        # A terminated run ends its tasks, as one does that Ctrl-C ends.
        for ending in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(ending) is not signal.SIG_IGN:  # as under nohup
                signal.signal(ending, signal.default_int_handler)
    try:
        SPAFlow()
    except SystemExit as stop:
        if starts and current.run_id:
            from flows.closing import say_last

            say_last(ARGV, f"{SPAFlow.__name__}/{current.run_id}", is_done=not stop.code)
        raise


if __name__ == "__main__":
    main()
