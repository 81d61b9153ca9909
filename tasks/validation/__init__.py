"""The validation step: data is checked against profiles by a service, and passed through (docs/services.md)."""
