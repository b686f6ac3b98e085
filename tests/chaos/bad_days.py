"""Bad days: what else than a kill may befall a flow, each made to happen to the real one.

    python -m tests.chaos.bad_days --seed 0 --write docs/reliability.md

Files cut at random bytes, a datastore or disk that takes nothing more, a clock set back, a tracking
server that dies. Every day ends with the run taken up as the printed words say, and its weights and
scores compared with those of a flow that nobody disturbed. `--days` names some of them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import scene
from tests.chaos.harness import STAGES, wait_for
from tests.chaos.scene import RUN, Ended, Scene, SkippedDay, at_work, attempt, cut

BEGIN = "<!-- bad days: written by tests.chaos.bad_days -->"
END = "<!-- end of bad days -->"


@dataclass(frozen=True)
class Row:
    """One bad day."""

    day: str
    where: str
    saw: str
    """What the user read."""
    then: str
    """What the user did."""
    is_equal: bool | None
    """None where this machine can't have such a day."""


Day = Callable[[Scene, str], Row]
"""Has the day happen in a directory of the given name."""


def checkpoint_cut(stage: Scene, name: str) -> Row:
    """The newest checkpoint loses the end of one of its files."""
    work = stage.copy(stage.halted, name)
    (newest,) = scene.checkpoint(work, 2)
    where = cut(_any_file(stage, newest), stage.rng)
    ended = attempt(work, *stage.resume)
    saw = ended.line("checkpoint step_00000002 is passed over", work)
    is_equal = stage.is_equal(work, ended)
    return Row("checkpoint cut", f"newest of PPO: {where}", saw, "resume", is_equal)


def checkpoints_all_cut(stage: Scene, name: str) -> Row:
    """So do all of them: an error says what to remove, and the stage then begins anew."""
    work = stage.copy(stage.halted, name)
    for step in (1, 2, 3):
        for each in scene.checkpoint(work, step):
            cut(each / "trainer_state.pt", stage.rng)
    failed = attempt(work, *stage.resume)
    assert failed.code != 0
    saw = failed.line("CheckpointError", work)
    found = re.search(r"Remove (\S+) to train", failed.text)
    assert found, failed.text
    shutil.rmtree(found[1])
    ended = attempt(work, *stage.resume)
    return Row(
        "checkpoint cut", "all of PPO", saw, "removed them, resume", stage.is_equal(work, ended)
    )


def model_cut(stage: Scene, name: str) -> Row:
    """A finished stage's model is cut between a kill and `resume`."""
    work = stage.copy(stage.halted, name)
    home = scene.kept(work, stage.halted_id, "sft_train")
    where = cut(next(home.rglob("model.safetensors")), stage.rng)
    failed = attempt(work, *stage.resume)
    assert failed.code != 0
    saw = failed.line("DataError", work)
    found = re.search(r"`resume (\w+) --origin-run-id (\d+)`", failed.text)
    assert found, failed.text
    ended = attempt(work, "resume", found[1], "--origin-run-id", found[2])
    return Row(
        "model cut", f"of finetuning: {where}", saw, f"`resume {found[1]}`",
        stage.is_equal(work, ended),
    )  # fmt: skip


def parquet_cut(stage: Scene, name: str) -> Row:
    """A kept Parquet file is cut; the next run must not reuse it."""
    work = stage.copy(stage.calm.work, name)
    step = stage.rng.choice(["selfplay_generate", "filter_format"])
    home = scene.kept(work, stage.calm.run_id, step)
    where = cut(stage.rng.choice(sorted(home.rglob("*.parquet"))), stage.rng)
    ended = attempt(work, *RUN)
    saw = ended.line(f"the kept result of {step} can't be used", work)
    assert f"{step} of frozenlake is reused" not in ended.text
    return Row("Parquet cut", f"`{step}`: {where}", saw, "a new run", stage.is_equal(work, ended))


def model_in_cache_cut(stage: Scene, name: str) -> Row:
    """A kept model is cut; the next run must not reuse it."""
    work = stage.copy(stage.calm.work, name)
    where = cut(_any_file(stage, scene.kept(work, stage.calm.run_id, "ppo_train")), stage.rng)
    ended = attempt(work, *RUN)
    saw = ended.line("the kept result of ppo_train can't be used", work)
    assert "ppo_train of frozenlake is reused" not in ended.text
    is_equal = stage.is_equal(work, ended)
    return Row("kept file cut", f"`ppo_train`: {where}", saw, "a new run", is_equal)


def read_only_before(stage: Scene, name: str) -> Row:
    """The datastore may not be written when a run starts."""
    scene.check_permissions_bind(stage.root)
    work = stage.copy(stage.halted, name)
    scene.set_writable(work / ".metaflow", is_writable=False)
    failed = attempt(work, *RUN, preexec_fn=scene.bound_by_permissions)
    assert failed.code == 2 and "Traceback" not in failed.text, failed.text
    saw = failed.line("can't be written", work)
    scene.set_writable(work / ".metaflow", is_writable=True)
    ended = attempt(work, *RUN, preexec_fn=scene.bound_by_permissions)
    return Row(
        "datastore read-only", "before the run", saw, "made writable, a new run",
        stage.is_equal(work, ended),
    )  # fmt: skip


def read_only_during(stage: Scene, name: str) -> Row:
    """The datastore becomes read-only while PPO is at work."""
    scene.check_permissions_bind(stage.root)
    work = stage.copy(stage.halted, name)

    def lock(process: subprocess.Popen[bytes], _: str) -> None:
        at_work(work, process)
        scene.set_writable(work / ".metaflow", is_writable=False)

    how = {"preexec_fn": scene.bound_by_permissions}
    failed = attempt(work, *stage.resume, when="ppo_train", then=lock, **how)
    assert failed.code != 0
    scene.set_writable(work / ".metaflow", is_writable=True)
    saw = failed.line("StorageError|datastore can't be written", work)
    ended = attempt(work, *stage.resume)
    return Row(
        "datastore read-only", "during PPO", saw, "made writable, resume",
        stage.is_equal(work, ended),
    )  # fmt: skip


def file_too_large(stage: Scene, name: str) -> Row:
    """A limit on the size of files, set while PPO is at work, refuses its next checkpoint."""
    work = stage.copy(stage.halted, name)

    def limit(process: subprocess.Popen[bytes], _: str) -> None:
        at_work(work, process)
        scene.limit_files(process, 100_000)

    failed = attempt(work, *stage.resume, when="ppo_train", then=limit)
    assert failed.code != 0
    assert "Traceback" not in failed.text, failed.text
    saw = failed.line("StorageError", work)
    assert scene.checkpoint(work, 2) and not scene.checkpoint(work, 3)
    ended = attempt(work, *stage.resume)
    return Row(
        "no room", "PPO, by a limit on files", saw, "limit removed, resume",
        stage.is_equal(work, ended),
    )  # fmt: skip


def disk_full(stage: Scene, name: str) -> Row:
    """The disk is full when PPO wants to keep its next checkpoint."""
    with scene.small_disk(stage.root / f"{name}_disk", megabytes=64) as disk:
        work = disk / "work"
        shutil.copytree(stage.halted, work, symlinks=True)
        (work / "log").unlink()  # a flow's words go elsewhere than its files
        (work / "log").symlink_to(stage.root / f"{name}.log")
        fillers: list[Path] = []

        def fill(process: subprocess.Popen[bytes], _: str) -> None:
            at_work(work, process)
            fillers.append(scene.fill(disk))

        failed = attempt(work, *stage.resume, when="ppo_train", then=fill)
        assert failed.code != 0
        fillers[0].unlink()
        saw = failed.line("StorageError|datastore can't be written", work)
        assert scene.checkpoint(work, 2)
        ended = attempt(work, *stage.resume)
        return Row("disk full", "during PPO", saw, "made room, resume", stage.is_equal(work, ended))


def clock_back_at_resume(stage: Scene, name: str) -> Row:
    """It is yesterday when a killed run is taken up: its id is lower than its origin's."""
    work = stage.copy(stage.halted, name)
    flag = work / "yesterday"
    flag.touch()
    ended = attempt(work, *stage.resume, env=scene.clock(stage.root, flag))
    assert int(ended.run_id) < int(stage.halted_id)
    return _clock_row("before `resume`", stage, work, ended, "resume")


def clock_back_during(stage: Scene, name: str) -> Row:
    """The clock is set back a day while a new run's PPO is at work, after another's checkpoint."""
    work = stage.copy(stage.halted, name)
    flag = work / "yesterday"

    def turn(process: subprocess.Popen[bytes], _: str) -> None:
        flag.touch()

    ended = attempt(work, *RUN, when="ppo_train", then=turn, env=scene.clock(stage.root, flag))
    assert "sft_train of frozenlake is reused" in ended.text
    return _clock_row("during PPO of a new run", stage, work, ended, "nothing")


def _clock_row(where: str, stage: Scene, work: Path, ended: Ended, then: str) -> Row:
    """No duration is negative, and a run by the right clock finds all that was computed."""
    is_equal = stage.is_equal(work, ended)
    exported = scene.export(work, ended.run_id)
    negative = [each for each in scene.durations(exported) if each[1] < 0]
    assert not negative, negative
    again = attempt(work, *RUN)
    reused = [step for step in STAGES if f"{step} of frozenlake is reused" in again.text]
    assert reused == list(STAGES), again.text[-3000:]
    return Row("clock set back a day", where, "nothing", then, is_equal)


def mlflow_killed(stage: Scene, name: str) -> Row:
    """The MLflow server is killed when PPO starts, and is back when the evaluation does."""
    work = stage.root / name
    work.mkdir()
    server = scene.MLflowServer(stage.root / f"{name}_server")
    server.start()

    def kill(process: subprocess.Popen[bytes], _: str) -> None:
        server.kill()
        wait_for(work, 0, "evaluate", process)
        server.start()

    words = [word.replace("tracking.enabled=false", f"tracking.uri={server.uri}") for word in RUN]
    try:
        ended = attempt(work, *words, when="ppo_train", then=kill)
        is_equal = stage.is_equal(work, ended)
        scene.send_what_waits(work)
        logged = server.logged()
    finally:
        server.kill()
    for step in STAGES:
        assert sorted(logged[step]) == sorted(scene.local_metrics(work, ended.run_id, step)), step
    points = sum(len(logged[step]) for step in STAGES)
    saw = ended.line("MLflow at", work, otherwise="nothing")
    then = f"`steps.tracking sync`: {points} points there, each once"
    return Row("MLflow killed", "during PPO, back at the evaluation", saw, then, is_equal)


DAYS: dict[str, Day] = {
    day.__name__: day
    for day in (
        checkpoint_cut, checkpoints_all_cut, model_cut, parquet_cut, model_in_cache_cut,
        read_only_before, read_only_during, file_too_large, disk_full,
        clock_back_at_resume, clock_back_during, mlflow_killed,
    )
}  # fmt: skip
REPEATED = {"checkpoint_cut": 3}
"""How often a day of chance is had in the long version."""


def _any_file(stage: Scene, directory: Path) -> Path:
    return stage.rng.choice(sorted(path for path in directory.rglob("*") if path.is_file()))


def run(names: Sequence[str], stage: Scene) -> Iterator[Row]:
    """The days of these names, in turn."""
    for index, name in enumerate(names):
        try:
            row = DAYS[name](stage, f"{index}_{name}")
        except SkippedDay as reason:
            row = Row(name.replace("_", " "), "-", f"not run: {reason}", "-", None)
        print(row, flush=True)
        yield row


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    words = {True: "yes", False: "**no**", None: "not run"}
    lines = [
        "| bad day | where | what the user saw | then | results equal |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.day} | {row.where} | {row.saw} | {row.then} | {words[row.is_equal]} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def write(text: str, document: Path) -> None:
    """Put the table between the marks of a document."""
    before, _, rest = document.read_text("utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{document} has no lines {BEGIN!r} and {END!r} for the table.")
    document.write_text(f"{before}{BEGIN}\n{text}{END}{after}", "utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--days", nargs="*", choices=list(DAYS), help="default: all of them")
    parser.add_argument("--write", type=Path, help="the document that holds the table")
    options = parser.parse_args()
    names = options.days or [name for name in DAYS for _ in range(REPEATED.get(name, 1))]
    with tempfile.TemporaryDirectory(prefix="spa-bad-days-") as root:
        rows = []
        for row in run(names, Scene(Path(root), options.seed)):
            rows.append(row)
            if options.write is not None:
                write(table(rows), options.write)
    print(table(rows))
    sys.exit(any(row.is_equal is False for row in rows))


if __name__ == "__main__":
    main()
