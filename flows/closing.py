"""The last words of `run` and `resume`, said on the machine where they were typed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from metaflow import Run, namespace

from steps.errors import SPAError
from steps.orchestration import command_line, runs
from steps.orchestration.datastore_root import ready_root


def say_last(argv: Sequence[str], pathspec: str, *, is_done: bool) -> None:
    """The table of a finished run, or the command that takes up one that isn't.

    `argv` is the command line that began it, `pathspec` `<flow>/<run id>`.
    """
    namespace(None)
    run = Run(pathspec)
    if is_done:
        _say_results(argv, run)
    else:
        _say_how_to_go_on(argv, run)


def _say_results(argv: Sequence[str], run: Any) -> None:
    from rich.console import Console

    from steps.report.tables import summary_table

    print(flush=True)
    Console().print(summary_table(run.data.summary))
    line = command_line.card_line(argv, run.id, "evaluate")
    print(f"\nThe results in pictures, in a browser:\n  {line}", flush=True)
    env_id, kept = next(iter(run.data.models.items()))
    model = Path(kept["url"]) / kept["model"]
    if model.is_dir():  # on this machine, in a datastore that needs no options
        lines = runs.next_lines(run.data.settings, env_id, run.id, model)
        print("Further, beside the paper's and over more tries:", *lines, sep="\n  ", flush=True)


def _say_how_to_go_on(argv: Sequence[str], run: Any) -> None:
    try:  # where the datastore takes nothing more, Metaflow ends with tracebacks
        ready_root(argv, run.pathspec.partition("/")[0])
    except SPAError as error:
        print(f"\n{error}", flush=True)
    failures = _failures(run)
    step_name = next((each["step"] for each in failures if each["is_noted"]), "")
    line = command_line.resume_line(argv, run.id, step_name)
    if any(failure["is_of_settings"] for failure in failures):
        print(
            "\nThe run ended early by its settings, which `resume` keeps. Start a new run with "
            f"others; finished stages are reused:\n  {command_line.run_line(argv)}\n"
            f"Where what they name has been mended in its place, go on with\n  {line}",
            flush=True,
        )
    else:
        print(f"\nThe run ended early. Finished steps are kept; go on with\n  {line}", flush=True)
    with suppress(Exception):  # it may have ended before there was anything to close
        from steps.tracking import finish_parent_run

        begun = run["start"].task.data
        config = runs.config_of(begun.settings, begun.environments[0])
        finish_parent_run(config, begun.tracking_run, status="FAILED")


def _failures(run: Any) -> list[dict[str, Any]]:
    """What the steps' tasks noted, the earliest step first.

    `is_noted`: the branch went on to the join, so that plain `resume` would skip the step.
    """
    found = []
    for step_name in runs.STEPS:
        with suppress(Exception):  # a step that the run has not reached
            for task in run[step_name]:
                failure = task.data.failure if "failure" in task else None
                if failure and failure["step"] == step_name:
                    found.append(
                        {"is_of_settings": False, **failure, "is_noted": bool(task.successful)}
                    )
    return found
