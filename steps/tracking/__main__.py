"""`python -m steps.tracking [SPOOL]`: send to MLflow what waits in a spool, then leave."""

from __future__ import annotations

import argparse
from pathlib import Path

from steps.tracking.feed import LINGER_S, feed
from steps.tracking.spool import STORE


def main() -> None:
    """Feed one spool at low priority: training comes first."""
    parser = argparse.ArgumentParser(prog="python -m steps.tracking", description=__doc__)
    parser.add_argument("spool", nargs="?", type=Path, default=STORE / "spool")
    parser.add_argument("--linger", type=float, default=LINGER_S, help="seconds to wait for more")
    arguments = parser.parse_args()
    if not arguments.spool.is_dir():
        parser.error(f"{arguments.spool} is no directory; name the spool, or run where .spa is.")
    feed(arguments.spool.resolve(), linger_s=arguments.linger, niceness=10)


if __name__ == "__main__":
    main()
