"""WebShop in text: search a catalogue, open a product, choose its options, buy it.

After Yao et al. 2022 (arXiv 2207.01206), without Flask, Java, spaCy or a download: `catalogue`
reads the published files or takes what `synthetic` makes up, `search` ranks, `goals` sets the
tasks, `reward` scores a purchase, `pages` walks and writes, `env` is the game.
"""

from envs.webshop.env import WebShop

__all__ = ["WebShop"]
