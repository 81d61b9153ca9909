"""Local stand-ins for the services that the pipeline uses: for trials and tests, not for production."""
