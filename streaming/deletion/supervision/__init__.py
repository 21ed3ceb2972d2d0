"""Runs beside the batches: the supervisor, periodic duties, parked queries, and what ends `run --until-idle`."""
