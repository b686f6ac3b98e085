"""How running episodes take their turns with a policy: together, or each as its answer comes.

A policy that answers in batches (`Policy`) is asked for all running episodes at once; it waits for
the longest answer. One with an engine of its own (`StreamingPolicy`) is given requests and hands
out answers as they are finished: an episode is stepped and asks again while the engine writes the
answers of the others, and one that ends makes room for a new one. Since an answer depends on its
request alone, both ways play the same episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from steps.agent.records import Completion, PolicyRequest, Sampling, StopReason


class Policy(Protocol):
    """Who answers."""

    name: str

    def complete(
        self, requests: Sequence[PolicyRequest], sampling: Sampling
    ) -> Sequence[Completion]:
        """One completion for each request, in their order."""
        ...


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """Who answers each request in its own time."""

    max_running: int
    """Most requests that it works on at once; more would wait inside it."""

    def submit(self, key: int, request: PolicyRequest, sampling: Sampling) -> None:
        """Start on a request; no two that aren't answered yet have the same key."""
        ...

    def poll(self) -> Sequence[tuple[int, Completion]]:
        """Wait for answers: at least one with its key, as long as anything is submitted."""
        ...

    def abort(self) -> None:
        """Forget every request that isn't answered yet."""
        ...


class Running(Protocol):
    """An episode as a driver sees it: `ask` and `take` alternate until `stop_reason` is set."""

    position: int
    stop_reason: StopReason | None

    def ask(self) -> PolicyRequest:
        """The request of the turn that comes now."""
        ...

    def take(self, completion: Completion) -> None:
        """Plays the answer and decides whether the episode ends."""
        ...

    def close(self) -> None:
        """Give back what the episode holds; it may be over."""
        ...


EpisodeT = TypeVar("EpisodeT", bound=Running)


class Drive(Generic[EpisodeT]):
    """Plays episodes to their ends; `on_end` is called with each as it ends."""

    def __init__(self, sampling: Sampling, on_end: Callable[[EpisodeT], None]) -> None:
        self.sampling = sampling
        self.on_end = on_end
        self.running: dict[int, EpisodeT] = {}

    def together(self, episodes: Iterable[EpisodeT], policy: Policy) -> None:
        """All begin at once, and each turn is one batch."""
        try:
            for episode in episodes:
                self.running[episode.position] = episode
            while self.running:
                asked = list(self.running.values())
                requests = [episode.ask() for episode in asked]
                completions = policy.complete(requests, self.sampling)
                assert len(completions) == len(requests), (policy.name, len(completions))
                for episode, completion in zip(asked, completions, strict=True):
                    self._take(episode, completion)
        finally:
            self._close()

    def streaming(self, episodes: Iterable[EpisodeT], policy: StreamingPolicy) -> None:
        """At most `policy.max_running` run; the next one is taken when another has ended."""
        waiting = iter(episodes)
        try:
            while True:
                while len(self.running) < policy.max_running:
                    entering = next(waiting, None)
                    if entering is None:
                        break
                    self.running[entering.position] = entering
                    policy.submit(entering.position, entering.ask(), self.sampling)
                if not self.running:
                    return
                answered = policy.poll()
                assert answered, (policy.name, "no answer", len(self.running))
                for key, completion in answered:
                    episode = self.running[key]
                    if self._take(episode, completion):
                        policy.submit(key, episode.ask(), self.sampling)
        finally:
            if self.running:
                policy.abort()
            self._close()

    def _take(self, episode: EpisodeT, completion: Completion) -> bool:
        """Whether the episode goes on."""
        episode.take(completion)
        if episode.stop_reason is None:
            return True
        del self.running[episode.position]
        self.on_end(episode)
        return False

    def _close(self) -> None:
        for episode in self.running.values():
            episode.close()
