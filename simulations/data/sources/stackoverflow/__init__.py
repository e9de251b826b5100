"""Stack Overflow as TensorFlow Federated and FedJAX publish it."""
