"""The commands, one module per group. Slow imports are in the function bodies, so that ``--help`` answers at once."""
