"""`ledger-reaper space`: reads a cluster without Spark, and divides its bytes by cause (udfs/space)."""
