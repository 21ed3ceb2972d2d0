"""Rules of phase one: how requests come about, and how marks are written into a topic's properties."""
