"""The send step: direct_resource_load now; transfer_load and s3_upload are not available yet."""
