"""Games of one's own: whole examples to start from, none of which the pipeline knows."""
