"""Small JSON files in state.dir (notes) that one process writes and others read."""
