"""`make demo`: the main job on a real cluster, from leaks to the proof that they are gone."""
