"""What Prometheus scrapes: metrics from the status of a node, and the HTTP port that serves them."""
