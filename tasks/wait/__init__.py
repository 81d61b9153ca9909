"""``wait``: a pause for manual inspection (docs/review.md)."""
