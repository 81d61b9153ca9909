"""The shared workshop: what several steps need."""
