"""What the outside sees: wire format, transports, HTTP APIs, command line, client, benchmarks."""
