"""The send step: direct_resource_load, transfer_load and s3_upload (document 3 §7)."""
