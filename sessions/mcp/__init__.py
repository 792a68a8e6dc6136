"""Tools of MCP servers, which this server lists and calls by itself (Model Context Protocol)."""
