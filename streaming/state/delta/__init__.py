"""Delta tables in state.dir: opening, committing, reading and cleaning them, on a disk and on an object store."""
