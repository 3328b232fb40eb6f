"""Faults put in on purpose: each must be noticed by a test that has a name."""
