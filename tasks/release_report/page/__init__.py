"""The release report as a person reads it: the page, its words, and the files in the job directory."""
