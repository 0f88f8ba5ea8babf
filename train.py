"""Train on reused samples: python train.py lifetime=2 seed=42"""

import hydra
from omegaconf import DictConfig

from training.command import begin, run_command
from training.loaders import make_loaders
from training.loop import choose_device, fit, set_up


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(composed: DictConfig) -> float:
    """Run one training; return the best validation accuracy, a fraction."""
    with begin(composed) as run:
        device = choose_device(run.config.device)
        set_up(run.config)
        loaders = make_loaders(run, device)
        return fit(run, loaders, device)


if __name__ == "__main__":
    run_command(main)
