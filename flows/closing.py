"""The last words of `run` and `resume`, said on the machine where they were typed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from metaflow import Run, namespace

from steps.errors import SPAError
from steps.orchestration import runs
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
    line = runs.card_line(argv, run.id, "evaluate")
    print(f"\nThe results in pictures, in a browser:\n  {line}", flush=True)


def _say_how_to_go_on(argv: Sequence[str], run: Any) -> None:
    try:  # where the datastore takes nothing more, Metaflow ends with tracebacks
        ready_root(argv, run.pathspec.partition("/")[0])
    except SPAError as error:
        print(f"\n{error}", flush=True)
    line = runs.resume_line(argv, run.id, _earliest_failure(run))
    print(f"\nThe run ended early. Finished steps are kept; go on with\n  {line}", flush=True)
    with suppress(Exception):  # it may have ended before there was anything to close
        from steps.tracking import finish_parent_run

        begun = run["start"].task.data
        config = runs.config_of(begun.settings, begun.environments[0])
        finish_parent_run(config, begun.tracking_run, status="FAILED")


def _earliest_failure(run: Any) -> str:
    """The first step that a branch noted a failure in, or nothing: plain `resume` skips these."""
    for step_name in runs.STEPS:
        with suppress(Exception):  # a step that the run has not reached
            for task in run[step_name]:
                failure = task.data.failure if "failure" in task else None
                if failure and failure["step"] == step_name:
                    return step_name
    return ""
