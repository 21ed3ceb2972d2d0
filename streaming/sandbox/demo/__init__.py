"""The main job from leak to proof, on a real cluster: what `make demo` runs."""
