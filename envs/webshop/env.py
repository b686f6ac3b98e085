"""The game: one goal an episode, a few pages, one purchase.

Deviations from the published environment stand in `WebShop.sheet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from envs.base import GRID_COORDS, STATE_FORMATS, DataSheet, TextEnv, TextSpace, digest_of
from envs.errors import EnvironmentConfigError, unknown_name
from envs.solvers import Bounds, Budget
from envs.webshop import catalogue, pages, synthetic
from envs.webshop.catalogue import Product
from envs.webshop.goals import SPLITS, Goal, make_goals, select
from envs.webshop.oracle import Plan, make_plan, next_action, wins_within
from envs.webshop.pages import DONE, SEARCH, Shop, State, advance, links
from envs.webshop.reward import score
from envs.webshop.search import SearchEngine, words

_MAX_SAMPLED_WORDS = 6


class WebShop(TextEnv):
    """A shop with a search engine; buy what the instruction asks for.

    Actions: `search[words]` on the search page, `click[label]` elsewhere, in any case.
    Reward: the score of the purchase, between 0 and 1. End: the purchase; success is a score of 1.
    Id: `webshop`.
    """

    oracle_is_optimal = False
    sheet = DataSheet(
        title="WebShop",
        summary=(
            "Read what a shopper asks for, search a catalogue, open a product, choose its options "
            "and buy it."
        ),
        state=(
            "The page in lines: the instruction, the page's name with the search it came from, and "
            "its content. What can be clicked stands in square brackets, chosen options behind "
            "`chosen:`. There is no grid: every state format is this text. With published products "
            "a page may be long (descriptions and lists of options aren't cut)."
        ),
        actions=(
            "`search[words]` on the search page (at least one letter or digit; 300 characters "
            "count), `click[label]` with a label of the page, both in any case. Any other text "
            "changes nothing."
        ),
        reward=(
            "0 until the purchase, then type × (attributes met + options met + price met) / "
            "(attributes + options + 1); fuzzy comparison as published, type 1, 0.5, 0.1 or 0."
        ),
        end="`click[Buy Now]` ends the episode; success is a score of exactly 1.",
        puzzles=(
            "A seed draws a goal of `goal_split`, in proportion to the published weights. Puzzles "
            "are the same when their instructions are. `goal_split` is the published division of "
            "goals (test 500, dev 1,000, train the rest, after the published shuffle); the "
            "pipeline's own division by puzzle hash comes on top. Without `data` the catalogue is "
            "made up: 1,000 products of 25 kinds. `data` is a folder with the published files, of "
            "which `_1000` comes before the full one and `items_human_ins.json` is optional; they "
            "are read once a process. A thousand products of 4 KB of JSON took 28 MB and 20,000 "
            "took 547 MB; by that the full 1.18 million would take about 32 GB."
        ),
        solver=(
            "The oracle knows the goal's product, searches for its title, chooses the options and "
            "buys: a heuristic, since the product may score below 1 in published data. The ceiling "
            "is exactly 1 where the oracle wins within the budget, else unknown; the floor is "
            "estimated by play."
        ),
        source="Yao et al. 2022, arXiv 2207.01206, https://github.com/princeton-nlp/WebShop (MIT).",
        deviations=(
            "The type of a product compares words of the titles without stop words; published are "
            "the nouns that spaCy tags. A shared adjective counts here.",
            "bm25s ranks, with Lucene's formula and Pyserini's constants; plural endings and the "
            "possessive are cut, other endings that Lucene's stemmer cuts are not.",
            "The search `<r>`, `<a>`, `<c>` or `<q>` has no special meaning.",
            "Searching works on the search page only; the published text environment plays it "
            "anywhere, though it offers it there only.",
            "`Next >` is shown only where results follow; published it leads on to empty pages.",
            "Pages name the search and the chosen options, which published pages keep to "
            "themselves, and are lines instead of texts joined by `[SEP]`.",
            "Price bounds and prices of ranges are drawn from the product's id; published they "
            "differ from process to process.",
            "Reviews exist in the made-up catalogue only: the published loader reads none.",
        ),
        variants={"webshop": "The made-up catalogue, all goals."},
    )

    def __init__(
        self,
        data: str | None = None,
        goal_split: str = "all",
        render_mode: str | None = None,
    ) -> None:
        """`data` is a folder with the published files; None is the made-up catalogue.

        `goal_split` is all, train, dev or test. Raises `EnvironmentConfigError` for files that
        can't be read, a split without goals, and where bm25s isn't installed.
        """
        _check(data, goal_split)
        self.data, self.goal_split, self.render_mode = data, goal_split, render_mode
        self._shop, goals = _made_up() if data is None else _published(*_fingerprint(data))
        self._goals = select(goals, goal_split)
        self._reach = np.cumsum([goal.weight for goal in self._goals])
        self.action_space = TextSpace(("search[shoes]", f"click[{pages.BUY}]"))
        self.observation_space = TextSpace()
        self.instruction = _INSTRUCTION

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw a goal and open the search page."""
        super().reset(seed=seed)
        draw = self.np_random.random() * self._reach[-1]
        index = int(np.searchsorted(self._reach, draw, side="right"))
        self._goal = self._goals[min(index, len(self._goals) - 1)]
        self._state = State()
        self._plan: Plan | None = None
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Search, click, or change nothing."""
        before, after = self._state, advance(self._shop, self._state, action)
        if after is not None:
            self._state = after
        is_bought = self._state.page == DONE
        points = self._score(self._state)
        info = {
            "success": points == 1.0,
            "action_is_valid": after is not None,
            "action_is_effective": self._state != before,
        }
        reward = points if self._state != before else 0.0
        return self.describe(), reward, is_bought, False, info

    def render(self) -> str:
        """The page."""
        return self.describe()

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`; every format is the page."""
        return self._describe(self._state, state_format)

    def state_key(self) -> str:
        """The instruction: what two goals share is one puzzle."""
        return f"webshop\n{self._goal.text}"

    def data_digest(self) -> str:
        """Of all products, with what the shop doesn't show: prices, options and attributes."""
        return digest_of(self._shop.products.values())

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`."""
        state = self._state
        for action in actions:
            state = advance(self._shop, state, action) or state
        return {self._describe(state, state_format): 1.0}

    def oracle(self, actions_left: int | None = None) -> str | None:
        """The next action of one who knows the product; a heuristic, see `envs.webshop.oracle`."""
        plan = self._planned()
        return next_action(self._shop, self._state, plan) if plan else None

    def sample_action(self, rng: np.random.Generator) -> str:
        """A label of the page, or a search for up to six words of the instruction in a row."""
        labels = tuple(links(self._shop, self._state))
        if labels:
            return f"click[{labels[int(rng.integers(len(labels)))]}]"
        said = words(self._goal.text)
        if self._state.page != SEARCH or not said:
            return f"click[{pages.BUY}]"
        count = int(rng.integers(1, min(len(said), _MAX_SAMPLED_WORDS) + 1))
        start = int(rng.integers(len(said) - count + 1))
        return f"search[{' '.join(said[start : start + count])}]"

    def success_bounds(self, budget: Budget) -> Bounds:
        """The ceiling is 1 where the oracle wins; below that, and for random play, unknown."""
        plan = self._planned()
        wins = plan and wins_within(self._shop, self._goal, plan, budget.playable)
        return Bounds(None, 1.0 if wins else None)

    def _planned(self) -> Plan | None:
        if self._plan is None:
            self._plan = make_plan(self._shop, self._goal)
        return self._plan

    def _score(self, state: State) -> float:
        if state.page != DONE:
            return 0.0
        chosen = [value for _, value in state.options]
        return score(self._shop.products[state.asin], chosen, self._goal)

    def _describe(self, state: State, state_format: str) -> str:
        if state_format not in STATE_FORMATS:
            raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))
        return pages.describe(self._shop, state, self._goal.text, self._score(state))


def _check(data: Any, goal_split: Any) -> None:
    if data is not None and not (isinstance(data, str) and data):
        raise EnvironmentConfigError(
            f"webshop: data is {data!r}; it must be the path of a folder, or None for the "
            "made-up catalogue."
        )
    if not isinstance(goal_split, str) or goal_split not in SPLITS:
        raise EnvironmentConfigError(unknown_name("goal split", str(goal_split), SPLITS))


@lru_cache(maxsize=1)
def _made_up() -> tuple[Shop, list[Goal]]:
    return _open(synthetic.products())


@lru_cache(maxsize=2)
def _published(folder: str, _stamp: tuple[tuple[str, int], ...]) -> tuple[Shop, list[Goal]]:
    return _open(catalogue.read_published(Path(folder)))


def _open(products: Sequence[Product]) -> tuple[Shop, list[Goal]]:
    engine = SearchEngine(products)
    return Shop({product.asin: product for product in products}, engine), make_goals(products)


def _fingerprint(data: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """A folder, and when its files were last written: files that change are read again."""
    folder = Path(data).expanduser().absolute()
    names = (*catalogue.PRODUCT_FILES, *catalogue.ATTRIBUTE_FILES, catalogue.HUMAN_FILE)
    present = (folder / name for name in names if (folder / name).is_file())
    return str(folder), tuple((path.name, path.stat().st_mtime_ns) for path in present)


_INSTRUCTION = """\
You are in a web shop and want to buy what the instruction asks for.
On the search page, search[words] finds products by their words: search[red running shoes] shows \
the best 50, ten a page. The shop can't be searched from any other page.
On other pages, click[label] follows a label in square brackets: click[Next >] turns the page, \
click[B0AB12CD34] opens that product, click[red] chooses an option of it, click[Description], \
click[Features] and click[Reviews] tell more, click[< Prev] goes back one page, click[Back to \
Search] starts anew.
click[Buy Now] buys the product with the options you chose and ends the game. Your score is the \
share of what was asked for that the purchase meets (each attribute, each option, the price), \
less for another kind of product; only a score of 1 wins."""
