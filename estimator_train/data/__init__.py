"""Describes data sets, finds and checks their files, and reads batches of examples from them."""
