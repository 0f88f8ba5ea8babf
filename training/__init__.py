"""The training pipeline: what a user of the template edits."""
