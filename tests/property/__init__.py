"""Chance against the engine: any order of what people, workers, networks and stores may do."""
