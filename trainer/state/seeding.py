"""Seed the generators of random numbers, once for the model and again at every step."""

import random

import numpy as np
import torch

from trainer.core.train_state import TrainState


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python."""
    # The widest seeds that torch (64 bits) and numpy (32 bits) accept.
    torch.manual_seed(seed % 2**64)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_step(state: TrainState, step: int) -> None:
    """Make dropout a function of seed, step and rank, so that a resume repeats it exactly."""
    training, world = state.config.training, state.world
    # The number of ranks may have grown since the run was configured. The stride covers all of
    # them, so no rank reuses a seed of another step.
    most = max(training.num_processes, world.size)
    # 1,000,003 is a prime beyond any usual step count: runs with neighboring seeds don't overlap.
    torch.manual_seed(((training.seed * 1_000_003 + step) * most + world.rank) % 2**64)
