"""Train on reused samples: python train.py lifetime=2 seed=42"""
# ruff: noqa: E402

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # CTRL-C during the imports ends them without a word

import hydra
from omegaconf import DictConfig

from training.command import begin, run_command
from training.device import choose_device, set_up
from training.evaluation import evaluate_checkpoint
from training.job import job
from training.loaders import make_loaders
from training.loop import fit
from training.models import has_batch_norm
from training.state import make_model


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
@job
def main(composed: DictConfig) -> float:
    """Run one training; return the best value of `trainer.monitor`, an accuracy as a fraction."""
    with begin(composed) as run:
        device = choose_device(run.config.device)
        set_up(run.config)
        model = make_model(run.config, device)
        with make_loaders(run, device, drop_single=has_batch_norm(model)) as loaders:
            if run.config.trainer.evaluate is not None:
                return evaluate_checkpoint(run, model, loaders, device)
            return fit(run, model, loaders, device)


if __name__ == "__main__":
    run_command(main)
