"""Rules of phase one: how requests are created, and how marks are written into a topic's properties."""
