"""What a document contains -> the runs that it describes, with settings and summaries. Pure."""
