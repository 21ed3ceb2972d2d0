"""How many milliseconds an hour and a day have."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
