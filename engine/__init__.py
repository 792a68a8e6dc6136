"""Media and text through stages: pipelines, stages, orchestrator, executors, models. Knows no client and no protocol."""
