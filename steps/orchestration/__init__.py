"""What stands between the flow and the stages: settings of a run, directories, checkpoints.

The only part of `steps` that may import Metaflow.
"""
