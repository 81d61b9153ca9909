"""The commands, one module a group. Slow imports stand in the bodies: ``--help`` answers at once."""
