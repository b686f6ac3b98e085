"""Many text games at once, as a Gymnasium vector environment in one process.

Gymnasium's own `SyncVectorEnv` works with text games, too, and gives the same results (a test holds
the two together). It copies every observation deeply and fills its info arrays one number at a
time, which costs more than the games themselves do; texts can't change, so nothing here is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.base import TextEnv
from envs.errors import EnvironmentConfigError

Texts = tuple[str, ...]
Bools = NDArray[np.bool_]
Result = tuple[Texts, NDArray[np.float64], Bools, Bools, dict[str, Any]]

FLAGS = ("success", "action_is_valid", "action_is_effective")
"""What every game's info holds."""


class TextVectorEnv(VectorEnv[Texts, Sequence[str], NDArray[Any]]):
    """`num_envs` games side by side; observations and actions are one text each.

    Autoreset is NEXT_STEP: the step after a game's end resets it, ignores its action and pays 0.
    Infos are arrays with a mask each (`success` and `_success`), as Gymnasium's are.
    """

    def __init__(self, make_env: Callable[[], gymnasium.Env[str, str]], num_envs: int = 1) -> None:
        """`make_env` is called `num_envs` times; its games may be wrapped."""
        if type(num_envs) is not int or num_envs < 1:
            message = f"TextVectorEnv: num_envs is {num_envs!r}; it must be a whole number from 1."
            raise EnvironmentConfigError(message)
        self.num_envs = num_envs
        self.envs = [make_env() for _ in range(num_envs)]
        first = self.envs[0]
        if not isinstance(first.unwrapped, TextEnv):
            message = f"TextVectorEnv: make_env makes {first.unwrapped!r}, which is no TextEnv."
            raise EnvironmentConfigError(message)
        self.spec, self.render_mode = first.spec, first.render_mode
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._steps = [env.step for env in self.envs]
        self._texts = [""] * num_envs
        self._is_over = [False] * num_envs

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Texts, dict[str, Any]]:
        """Reset all games: a number seeds them one after the other, a list one by one.

        `options["reset_mask"]`, a bool array, restricts it to some of them; the rest goes to each.
        """
        options = dict(options) if options else {}
        mask = self._mask(options.pop("reset_mask", None))
        infos: list[dict[str, Any] | None] = [None] * self.num_envs
        for index, each in enumerate(self._seeds(seed)):
            if mask[index]:
                env = self.envs[index]
                self._texts[index], infos[index] = env.reset(seed=each, options=options or None)
                self._is_over[index] = False
        return tuple(self._texts), self._batched(infos)

    def step(self, actions: Sequence[str]) -> Result:
        """Play one action in each game, and reset those that were over before."""
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ValueError(f"give a sequence of {self.num_envs} texts, not {actions!r:.80}")
        texts, is_over, infos = self._texts, self._is_over, []
        reward: SupportsFloat
        rewards: list[SupportsFloat] = []
        terminated, truncated = [], []
        for index, step in enumerate(self._steps):
            if is_over[index]:
                texts[index], info = self.envs[index].reset()
                reward, is_done, is_cut = 0.0, False, False
            else:
                texts[index], reward, is_done, is_cut, info = step(actions[index])
            is_over[index] = is_done or is_cut
            rewards.append(reward)
            terminated.append(is_done)
            truncated.append(is_cut)
            infos.append(info)
        return (
            tuple(texts),
            np.array(rewards, dtype=np.float64),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            self._batched(infos),
        )

    def render(self) -> tuple[Any, ...]:
        """What each game renders."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """A method's result, or an attribute's value, of each game's `TextEnv`."""
        members = [getattr(env.unwrapped, name) for env in self.envs]
        return tuple(each(*args, **kwargs) if callable(each) else each for each in members)

    def close_extras(self, **kwargs: Any) -> None:
        """Close each game."""
        for env in self.envs:
            env.close()

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each game."""
        return self.call("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each game's last seeded reset."""
        return self.call("np_random_seed")

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"give a seed for each of {self.num_envs} games, not {len(seed)}")
        return seed

    def _mask(self, mask: Any) -> Sequence[bool]:
        if mask is None:
            return [True] * self.num_envs
        is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_
        if not is_mask or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"reset_mask is a bool array of {self.num_envs}, not all False; it is {mask!r}"
            )
        flags: list[bool] = mask.tolist()
        return flags

    def _batched(self, infos: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
        """Gymnasium's way to batch infos; quick where there is nothing but our flags."""
        batch: dict[str, Any] = {}
        if all(info is not None and info.keys() == _FLAG_KEYS for info in infos):
            for name in FLAGS:
                batch[name] = np.array([info[name] for info in infos], dtype=np.bool_)  # type: ignore[index]
                batch[f"_{name}"] = np.ones(self.num_envs, dtype=np.bool_)
            return batch
        for index, info in enumerate(infos):
            if info is not None:
                batch = self._add_info(batch, info, index)
        return batch


_FLAG_KEYS = dict.fromkeys(FLAGS).keys()
