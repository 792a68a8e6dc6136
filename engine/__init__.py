"""Media and text through stages: pipelines, orchestrator, executors, models. Knows no client and no protocol."""
