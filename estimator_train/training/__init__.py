"""Trains a model: opens the run, prepares the model, trains, saves checkpoints, and evaluates."""
