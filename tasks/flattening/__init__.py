"""The flattening step: data becomes CSV through a flattening service (document 1, ``services.flattening``)."""
