"""Shows a measurement: on the terminal, as JSON, as a page and as a chapter of the audit's report."""
