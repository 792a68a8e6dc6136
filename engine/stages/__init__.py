"""The model components behind the stages of a pipeline."""
