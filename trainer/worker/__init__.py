"""The training process and the supervisor that restarts it."""
