"""The release report: may these data leave, and if not, why (docs/review.md)."""
