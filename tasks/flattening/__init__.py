"""The flattening step: data becomes CSV through a flattening service (docs/services.md)."""
