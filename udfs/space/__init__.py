"""Space: divides the bytes of a cluster's ledgers by their cause. Reads and writes nothing."""
