"""Many virtual clients in one process, for load tests and demonstrations: what no device needs."""
