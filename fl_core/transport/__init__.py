"""How clients and server reach each other: messages, what a transport must do, and gRPC, which does it."""
