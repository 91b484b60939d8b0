"""What every package of the trainer builds on."""
