"""``s3_upload``: the files of the input directory become objects of an S3-compatible bucket (document 3 §7)."""
