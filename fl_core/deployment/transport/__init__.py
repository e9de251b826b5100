"""What carries the messages: gRPC and HTTP."""
