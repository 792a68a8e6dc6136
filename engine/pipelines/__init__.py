"""The packaged pipelines, one module each."""
