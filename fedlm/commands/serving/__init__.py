"""What the commands of a deployment's server share: what is trained, and who is listened to."""
